"""The settler: the one process that decides. Watch updates go in; sessions, postings, grants and standings
come out.

`cluster` holds the observed state of the cluster, `state` what the ledger contains, `decide` compares the two
as functions of values, and `settler` runs the ticks: one read, one decision, one transaction. `evictions` and
`election` are edges of their own.

Imports accounts, store, metrics, runtime and core. Never here: HTTP routes, SQL, or arithmetic that the API
needs too (that belongs to `accounts`).
"""
