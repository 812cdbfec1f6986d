"""Decisions on their way to the ledger: a bounded buffer, and what posts it. No caller waits for them."""
