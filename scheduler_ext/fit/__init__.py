"""Whether a request fits on a node and on which cards, or why not: one answer for filter, prioritize, bind
and preemption.

Lives here: the exact search over cards and containers, topology, and the refusals. Imports scoring, snapshot
and model. Never here: which node is best, caching of answers, clocks, input or output.
"""
