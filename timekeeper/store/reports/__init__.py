"""Usage reports as SQL statements that the database sums up.

May import ``engine`` and what stands below it in the store. Never here: what a row means
(`timekeeper.accounts`) and who may read it (`timekeeper.api`).
"""
