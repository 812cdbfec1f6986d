"""kube-scheduler's extender for GPU cards: filter, prioritize, preempt and bind on particular cards.

Top to bottom: ``serving`` and ``reports`` answer callers; ``verbs`` decide the answers; ``binding``,
``controllers`` and ``leadership`` act on the cluster and do not import each other; ``cache`` holds the
running snapshot; ``clients`` call other processes; ``settings`` reads flags. Pure, below them:
``preemption``, ``waiting``, ``fit``, ``scoring``, ``snapshot``, ``model``. Shared with other roles:
``timekeeper.core`` and ``timekeeper.runtime`` only.
"""
