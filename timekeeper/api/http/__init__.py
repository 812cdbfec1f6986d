"""Routes, parameters, answers and the OpenAPI document, which is made from their declarations.

May import ``ledger``, ``auth`` and `problem`. Never here: a particular resource.
"""
