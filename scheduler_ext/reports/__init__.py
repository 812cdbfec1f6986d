"""What people, dashboards and Prometheus read of the extender: pages, metrics, totals, headroom.

May import ``verbs`` and what lies below it. Never here: anything that changes a pod, a node or the cache.
"""
