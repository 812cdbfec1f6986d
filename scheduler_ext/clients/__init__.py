"""Calls to other processes that several parts of the extender share: patches and polls.

May import ``settings`` and the pure packages. Never here: decisions, and state that a decision depends on.
"""
