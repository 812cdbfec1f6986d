"""Measured use of cards, by sidecars, node agents or Prometheus: totals by the hour, idle pods and what
follows, pods over their memory share and which of them to evict.

Pure. Never here: anything that a namespace is charged by.
"""
