"""Which replica may bind: election by a Lease, the takeover, and the fencing of earlier leaders' Bindings.

May import ``cache``, ``clients`` and ``model``. Never here: anything about cards.
"""
