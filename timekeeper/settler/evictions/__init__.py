"""Evictions of pods that use more GPU memory than their share: the loop, the API calls and the Events.

The rule (which pod is next) is in `accounts.card_use.evictions`. Never here: anything that changes the
ledger.
"""
