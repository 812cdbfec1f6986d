"""The pure core of Bursar: requests, dialects, cards, budgets, metering and wire formats.

Functions of values; imports the standard library, PyYAML's parser in `budgets`, and orjson in `admission`.
Every role may import it. Never here: a clock, a network, a disk, or a name of one role.
"""

__version__ = "0.2.0"
