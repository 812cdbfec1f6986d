"""The rules of admission: a pod and the policy of its namespace in, every violation out.

May import `mutation` (what Bursar itself writes is no violation) and what stands below it. Never here: how a
violation is answered (`webhook.admission`), clocks, files, network.
"""
