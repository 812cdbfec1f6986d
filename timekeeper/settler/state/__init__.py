"""The ledger as the settler holds it in memory: sessions, cached totals and cached statements, kept from tick
to tick.

Imports `cluster`, accounts, store and core. Never here: a decision about what to write, or an edge.
"""
