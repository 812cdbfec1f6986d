"""kube-scheduler's extender for GPU cards: filter, prioritize, preempt and bind on particular cards.

Top to bottom: ``serving`` and ``reports`` answer callers; ``verbs`` decide them; ``binding``, ``controllers``
and ``leadership`` act on the cluster and do not import each other; ``cache`` holds the running snapshot;
``clients`` call other processes; ``settings`` reads flags. The packages below are pure. Shared with other
roles: ``timekeeper.core`` and ``timekeeper.runtime`` only.
"""
