"""The audit: the ledger recomputed from its evidence, and every difference reported.

`evidence` computes each session's charge a second time. `charges` and `grants` compare the rows with it and
with the budgets, `claims` and `cluster` the sessions with what the API server holds. `audit` runs all of them
for the accounts of `spans`, each difference is a `finding`, and `reports` prints them. May import `store`
queries. Never here: functions that the settler charges with.
"""
