"""The decisions of one tick as functions of values: which sessions change, what is due to be posted, what is
written.

Imports `state`, `cluster`, accounts and core. Never here: clocks, connections, logging.
"""
