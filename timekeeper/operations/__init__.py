"""Operators' commands: audit, export, import, rollup, backup and migrate.

May import ``store`` and ``accounts``. Never here: a server, or the settler's own arithmetic; ``audit`` must
stay independent of it.
"""
