"""The pure half of talking to Kubernetes: Leases, evictions, and the annotation of node agents.

Imports `request` and the vocabulary. Never here: an HTTP call; those are in `runtime` and `edge`.
"""
