"""Authentication and authorization by Kubernetes: tokens, TokenReview, SubjectAccessReview.

May import `problem`, ``core`` and ``runtime``. Never here: the ledger.
"""
