"""The pods that wait for a card, and their order.

Imports fit, scoring, snapshot and model. Never here: threads, locks, calls to the API server (``controllers``
retries the pods).
"""
