"""Time into amounts: when a pod holds its cards, which time is charged, periods and balances; and whose use
of late is least.

Imports `budgets`, `request` and the vocabulary. Never here: rows, sessions and postings (`accounts`).
"""
