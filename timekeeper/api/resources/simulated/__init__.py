"""What a simulation reads and answers: its body, the pods of its manifest, and the answer's parts.

`timekeeper.api.resources.simulation` has the route. Never here: what decides.
"""
