"""The supervisor of the timekeeper's processes, and the checks before they start.

May import every package below it. Never here: requests, and decisions of the ledger.
"""
