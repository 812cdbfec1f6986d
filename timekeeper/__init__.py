"""The timekeeper: budgets of GPU time, sessions, postings, standings and the REST API.

``core`` is pure and shared with every role; ``runtime`` is what any process of ours needs, shared too. The
other packages are the timekeeper's own, each over those below it: ``process``, ``serving``, then ``api``,
``settler`` and ``operations`` beside each other, ``store``, ``accounts``. Nothing is imported here.
"""
