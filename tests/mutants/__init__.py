"""Mutants: the product with one small change each, and the tests that notice it (`make mutants`)."""
