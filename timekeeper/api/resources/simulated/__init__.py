"""What a simulation reads and answers: its body, the pods of the owners there, and the answer's parts.

`timekeeper.api.resources.simulation` has the route. Never here: what decides.
"""
