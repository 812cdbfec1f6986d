"""The database engine: connections, SQLite and PostgreSQL, the schema and its upgrade, and workloads as SQL.

May import ``timekeeper.settings`` and SQLAlchemy. Never here: what a row means (`timekeeper.accounts`) and
who may read it (`timekeeper.api`).
"""
