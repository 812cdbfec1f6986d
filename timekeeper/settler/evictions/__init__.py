"""Evictions of pods that use more GPU memory than their share, and of pods of exhausted accounts with
``onExhausted: evict``: the loop, the API calls and the Events.

The rules (which pod is next) are in `accounts.card_use.evictions` and `accounts.exhaustion.evictions`. Never
here: anything that changes the ledger.
"""
