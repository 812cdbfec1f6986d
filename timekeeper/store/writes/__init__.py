"""Writes: each function runs inside a transaction that its caller opened. Rows are locked and written in one
order, so that two writers cannot deadlock.

May import ``engine`` and what stands below it in the store. Never here: what a row means
(`timekeeper.accounts`) and who may read it (`timekeeper.api`).
"""
