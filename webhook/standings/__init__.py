"""The timekeeper's table of standings: decoding it, a namespace's standing and policy at a moment, and the
estimate of what was admitted since.

May import `webhook.policy` and `timekeeper.core`. Never here: polling, clocks; times are arguments.
"""
