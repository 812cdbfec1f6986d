"""Decisions about budgets, and the sentences for decisions. Pure, as all of the accounts."""
