"""The values that the extender reads from Kubernetes objects and from the timekeeper: Pod, Node, PDB,
Reservation, LeaderMark, NamespaceStanding.

Each module has one reader, which parses JSON and never raises on what an API server can hold. Imports
timekeeper.core alone. Never here: a clock, input or output, or a decision about nodes and cards.
"""
