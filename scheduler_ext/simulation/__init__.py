"""Simulations: where pods would be placed.

Lives here: the composition of the functions that decide, and the bound of its time. May import the verbs'
pure parts and everything below them. Never here: an effect on the cache, on other pods or on metrics of the
verbs.
"""
