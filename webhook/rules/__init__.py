"""The rules of admission: a pod and the policy of its namespace in, every violation out.

May import `webhook.mutation` (what Bursar itself writes is no violation), `webhook.wire`, `webhook.policy`
and `timekeeper.core`. Never here: how a violation is answered (`webhook.admission`), clocks, files, network.
"""
