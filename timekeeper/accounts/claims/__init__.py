"""Claims on devices in the ledger: a session for each allocation, the pods that use it, and what is reported
of claims.

Imports `session` and the core.
"""
