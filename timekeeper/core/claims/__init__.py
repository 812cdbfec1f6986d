"""Device claims (`resource.k8s.io/v1`): pure values and rules.

May import the vocabulary of `timekeeper.core` and its dialects. Never here: I/O, clocks, and
the rules of admission.
"""
