"""The pure core of Bursar: requests, dialects, cards, budgets, ledger and wire formats.

Functions of values, standard library only (PyYAML's composer in ``budgets``). The one package that every role
may import.
"""

__version__ = "0.1.0"
