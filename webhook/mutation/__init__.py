"""What Bursar writes into a pod, as RFC 6902 operations, one module for each part of the pod.

May import `webhook.wire`, `webhook.policy` and `timekeeper.core`. Never here: refusals, and standings or
policies from anywhere but the arguments.
"""
