"""The contracts of all dialects."""
