"""Wiring: which parts the running extender has, and what each is given.

May import everything below ``server``. Never here: decisions, and work that a part does by itself.
"""
