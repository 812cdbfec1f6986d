"""``python -m webhook review``: what admission would say to manifests, without a cluster."""
