"""What Bursar writes into a pod, as RFC 6902 operations, one module for each part of the pod.

May import `webhook.wire`, `webhook.policy` and `timekeeper.core`. Standings and policies are arguments. Never
here: refusals.
"""
