"""What a table of each resource shows, declared once: its columns over the rows of a plain answer. `kubectl
bursar`, the dashboard, CSV and a Table of ``meta.k8s.io/v1`` print it.

Pure: no call, no clock, no database. May import the core alone.
"""
