"""Evictions by the timekeeper: for overuse of memory, idleness, overtime, a gang below its minimum, a spent
budget, claims that hold more than was judged, and the device of a waiting pod's claim.

Pure functions in `accounts` decide who leaves. A round for each reason asks them: `rounds`, `budget_round`,
`claim_excess`, `claim_reclaim`. `reasons` says why; `evictor` evicts, and has the thread. Never here:
anything that changes the ledger.
"""
