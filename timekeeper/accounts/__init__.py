"""What the ledger's rows mean, as functions of values: pods and sessions, budgets in force, postings,
balances, standings and reports.

Pure, like the core that it builds on; settler and serving workers share it, so that both count alike.
"""
