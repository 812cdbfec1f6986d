"""Simulations: where pods would be placed, and who would leave for them.

Lives here: the composition of the functions that decide, and the child process that runs it. May import the
verbs' pure parts and everything below them. Never here: an effect on the cache, on other pods or on metrics
of the verbs.
"""
