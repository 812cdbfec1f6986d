"""``python -m webhook certificates``: one CA, a certificate for each server, and the CA in the webhook
configurations.

`plan`, `reading` and `issue` work on values; `cluster`, `files` and `run` touch the API server, disk and
clock. Never here: reviews, and anything that a serving worker imports, because this package loads
`kubernetes`.
"""
