"""Which replica may bind: election by a Lease, the takeover, and the fencing of earlier leaders' Bindings.

`takeover` describes the whole protocol; start there. May import ``cache``, ``clients`` and ``model``. Never
here: anything about cards.
"""
