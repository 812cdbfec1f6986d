"""``python -m webhook audit``: lists what exists in a cluster and would be refused by today's rules.

May import everything but `webhook.server` and `webhook.controller`. Never here: writes to the cluster.
"""
