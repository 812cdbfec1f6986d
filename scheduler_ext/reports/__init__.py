"""What people, dashboards and Prometheus read of the extender: metrics, totals, decisions, posts for the map.

May import ``verbs`` and what lies below it. Never here: anything that changes a pod, a node or the cache.
"""
