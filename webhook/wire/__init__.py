"""The formats between an API server and the webhook: AdmissionReviews, an API server's defaults.

May import `timekeeper.core`. Other packages rely on the types that are checked here. Never here: rules.
"""
