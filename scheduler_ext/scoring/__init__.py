"""Which of the fitting cards and nodes is best: the placement policies and the ranks made of their scores.

Lives here: binpack, spread, random, load and fragmentation, with the typical pods that fragmentation learns.
Imports snapshot and model. Never here: whether a pod fits (fit), polling of measurements (clients).
"""
