"""The ledger on disk. Alone in the project it speaks SQL: through SQLAlchemy Core, without an ORM.

Values of `timekeeper.accounts` go in and come out; every write is one transaction, so that a process killed
at any moment leaves either all of a decision or nothing of it.
"""
