"""What Bursar writes into a pod, as RFC 6902 operations, one module for each part of the pod.

Standings and policies are arguments. Never here: refusals.
"""
