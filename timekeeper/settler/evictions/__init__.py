"""Evictions by the timekeeper: for overuse of memory, idleness, overtime, a gang below its minimum, a spent
budget, claims that hold more than was judged, and the device of a waiting pod's claim.

Pure functions in `accounts` decide who leaves. A round for each reason asks them: `rounds`, `budget_round`,
`claim_excess`, `claim_reclaim` (by `known_devices` and `taint_rules`). `disruptions` counts what disruption
budgets allow; `reasons` says why; `evictor` has the thread. Never here: anything that changes the ledger.
"""
