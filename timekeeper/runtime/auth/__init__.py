"""Authentication and authorization by Kubernetes: tokens, TokenReview, SubjectAccessReview.

May import ``core`` and the rest of ``runtime``. Never here: the ledger, or what a caller may read.
"""
