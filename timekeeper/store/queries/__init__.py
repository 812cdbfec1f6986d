"""Reads that several parts share. They see one moment of the database and change nothing.

May import ``engine`` and what stands below it in the store. Never here: what a row means
(`timekeeper.accounts`) and who may read it (`timekeeper.api`).
"""
