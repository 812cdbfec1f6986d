"""The ledger's schema over time. A revision must leave the previous release working, see script.py.mako."""
