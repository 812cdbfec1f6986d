"""Measured use of cards: hourly totals from sidecars and node agents, pods over their memory share, and which
of them to evict.

Pure. The rest of `accounts` does not import it. Never here: anything that a namespace is charged by.
"""
