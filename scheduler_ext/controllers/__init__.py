"""Loops that act without a caller: the requeuer retries waiting pods, the preemptor evicts for them.

May import ``cache``, ``clients`` and the pure packages. Never here: the choice of victims (`preemption`) and
of the next pod (`waiting`); both are pure.
"""
