"""The timekeeper's table of standings: decoding it, and the estimate of what was admitted since.

May import `timekeeper.core`. Never here: polling, clocks; times are arguments.
"""
