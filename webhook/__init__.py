"""Bursar's admission webhook: refuses invalid GPU requests, governs the others, and keeps its certificates.

One package for each command (`server`, `controller`, `dryrun`, `audit`) over rooms that only decide. It
imports `timekeeper.core` and `timekeeper.runtime`, and never another role.
"""
