"""The ledger as the settler holds it in memory: sessions, the table of those that are open, what is
posted, and statements, kept from tick to tick; and the view of the last tick, which other threads read.

Imports `cluster`, accounts, store and core. Never here: a decision about what to write, or an edge.
"""
