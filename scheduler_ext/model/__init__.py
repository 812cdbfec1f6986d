"""The values that the extender reads from Kubernetes objects and from the timekeeper: Pod, Node, PDB,
Reservation, LeaderMark, NamespaceStanding. Each module has one reader, which parses JSON and never raises
on what an API server can hold.

Imports timekeeper.core alone. Nothing here knows what a pod may have or where: no clock, no input or output,
no decision.
"""
