"""The budget ConfigMaps: their values, and the only reader of their text.

Imports `request`, `dialects` and the vocabulary. Never here: when an entry took effect
(`accounts.budget_history`), and what a namespace has used.
"""
