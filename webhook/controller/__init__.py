"""``python -m webhook certificates``: one CA, a certificate for each server, and the CA in the webhook
configurations.

`plan`, `reading`, `issue` and `device_classes` work on values; `cluster` and `run` touch the API server and
the clock. Never here: reviews, and anything that a serving worker imports.
"""
