"""The supervisor of the timekeeper's processes, and the checks before they start.

May import every room below it. Never here: requests, and decisions of the ledger.
"""
