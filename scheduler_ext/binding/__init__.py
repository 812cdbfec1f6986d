"""Binding a pod: the last fit under the node's lock, the Binding itself, and its outcome as a value.

May import ``cache``, ``clients`` and the pure packages. Never here: which replica may bind (`leadership`) and
which pods leave (`controllers`).
"""
