"""What a pod requests of GPUs, and what a placement on cards means and costs.

Imports `dialects` and the vocabulary. Never here: which card to choose (the extender), and the amounts of one
dialect (`dialects`).
"""
