"""Claims on devices (Kubernetes' dynamic resource allocation): what is allocated, what drivers publish of it,
which devices are GPUs, and what they cost. Source: k8s.io/api/resource/v1.

Imports `request`, `dialects` and the vocabulary. Never here: sessions (`accounts`) and budgets.
"""
