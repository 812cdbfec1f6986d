"""The cluster as the settler observes it: the watches, the state they build up, and which pods are on which
node.

Imports accounts and core. Never here: what the ledger contains, and decisions.
"""
