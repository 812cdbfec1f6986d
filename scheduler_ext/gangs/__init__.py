"""Gangs: cards for all pods that start together, or for none.

Lives here: the plan for all members, pure, and its reservations on the members' objects. May import the
verbs' pure parts and everything below them. Never here: whether a budget pays, and the removal of gates: both
are the timekeeper's.
"""
