"""Decisions about budgets, and what is told about decisions. Pure, as all of the accounts."""
