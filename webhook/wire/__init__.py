"""The formats between an API server and the webhook: AdmissionReviews, JSON Patch, an API server's defaults.

May import `timekeeper.core`. Never here: rules; past this package nothing checks types again.
"""
