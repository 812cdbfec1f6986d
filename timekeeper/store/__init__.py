"""The ledger in SQL: SQLAlchemy Core, without an ORM.

Lives here: the engine and schema, queries, writes, reports, transfer (export, import, backup) and retention.
May import ``accounts``, ``settings`` and ``runtime``. Every write is one transaction, so a process killed at
any moment leaves a whole decision or none. Never here: decisions about budgets or charges, and HTTP.
"""
