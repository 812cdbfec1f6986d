"""The cluster as one immutable value: nodes with the pods on their cards, and what is free on each card.

Lives here: the snapshot, one function per event that makes the next snapshot, and the map that they share.
Imports the model and timekeeper.core. Never here: policies, the search for a fit, clocks, input or output.
"""
