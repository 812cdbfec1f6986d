"""What the extender posts: the pods that it bound, and the live map of nodes, cards and waiting pods.

As the other resources: routes over bodies, HTTP and the ledger. Never here: what a charge follows from.
"""
