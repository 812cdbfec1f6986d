"""From a review to its answer: pods, workloads, budget ConfigMaps.

May import `webhook.rules`, `webhook.mutation`, `webhook.wire`, `webhook.policy` and `timekeeper.core`. Never
here: clocks, files, network, metrics; standings and policies are arguments.
"""
