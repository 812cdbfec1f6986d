"""Which pods must leave so that a waiting pod gets its cards, decided from values.

Lives here: rank, the choice of victims and its search, cooldowns, the queue of waiting pods, and the record
of preemptions under way. Imports waiting, fit, scoring, snapshot and model. Never here: evictions,
reservations written to the API server, threads (controllers do that).
"""
