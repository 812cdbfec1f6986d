"""From a review to its answer: pods, workloads, budget ConfigMaps.

May import `webhook.wire` and `timekeeper.core`, whose `admission` has the rules. Never here: clocks, files,
network, metrics; standings and policies are arguments.
"""
