"""The one process that decides: what the cluster tells goes in, sessions, postings, grants and standings come
out.

`watching` hears, `world` remembers what was heard, `book` what the ledger says, `decide` compares the two,
and `run` turns the wheel. Edges, a queue, pure decisions, one transaction.
"""
