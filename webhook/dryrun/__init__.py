"""``python -m webhook review``: the answers of admission to manifests, without a cluster.

Flags, files and standard streams are here; `judge` decides. May import everything but `webhook.server`,
`webhook.controller` and `webhook.audit`. Never here: network.
"""
