"""The flags and `BURSAR_*` variables of the commands ``serve`` and ``certificates``.

The only place that reads the environment. May import `webhook.lifetimes`, `webhook.admission` (paths of
templates) and `timekeeper.runtime`. Never here: what a setting means to a pod.
"""
