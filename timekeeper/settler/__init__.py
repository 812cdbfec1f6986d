"""The settler: the only process that decides charges and standings. Watch updates go in; sessions, postings,
grants and standings come out.

`cluster` holds the observed state of the cluster, `state` what the ledger contains, `decide` compares the two
as functions of values, and `settler` runs the ticks: one read, one decision, one transaction. `process`
elects; the threads of `epoch_threads` evict, release and close months while this settler leads.
They read the last tick's `state.tick_view` alone.

Each pod is one row of `cluster.watched_pods`, and the row says how it is charged. Why it is not charged
yet, or its end not settled: its charge is unknown (`cluster.claim_requests`), `state.pods_without_node`,
`cluster.pods_without_object` (its end is not proved); or nothing of its account is written
(`decide.withheld_accounts`).

Imports accounts, store, metrics, runtime and core. Never here: HTTP routes, SQL, or arithmetic that the API
needs too (that belongs to `accounts`).
"""
