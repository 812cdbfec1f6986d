"""Reclaim of devices that claims hold: for which waiting pod, from whose claim, and when not again. Pure.

Kubernetes evicts no pod for a device claim. Here the pods of a claim are evicted for a pod of a namespace in
budget, by the rules of reclaim for cards (docs/preemption.md).
"""
