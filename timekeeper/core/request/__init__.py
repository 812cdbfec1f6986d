"""What a pod requests of GPUs, what a placement on cards means and costs, and the annotations for both.

Imports `dialects` and the vocabulary. Never here: which card to choose (the extender), and how one dialect
writes amounts (`dialects`).
"""
