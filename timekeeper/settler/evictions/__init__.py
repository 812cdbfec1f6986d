"""Evictions: of pods that use more GPU memory than their share, use no card, or hold cards past their
declared time, and of pods of accounts with ``onExhausted: evict``.

Four pure functions ``due`` in `accounts` decide which pod is next; `reasons` says why; `evictor.evict` does
it. Never here: anything that changes the ledger.
"""
