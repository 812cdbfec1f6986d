"""Releases of held pods: the loop, the API calls and the Events.

The rule (which pods are next) is in `accounts.held`. Never here: anything that changes the ledger.
"""
