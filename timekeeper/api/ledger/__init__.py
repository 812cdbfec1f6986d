"""The ledger as requests use it: reads of one moment of the database, and grouped writes of heartbeats.

May import ``store`` and ``accounts``. Never here: HTTP.
"""
