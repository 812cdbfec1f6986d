"""Request bodies, parsed once into values or refused with the field's name.

May import ``http`` and what lies below it. Never here: the ledger.
"""
