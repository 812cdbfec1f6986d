"""``kubectl bursar scheduler``: a kube-scheduler's static pod is connected to the extender, and disconnected.

`configuration` and `static_pod` are functions of values; `files` reads and writes. Never here: the cluster.
"""
