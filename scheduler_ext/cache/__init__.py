"""What the extender knows of the cluster now: one immutable snapshot, replaced as a whole at each change.

Lives here: the informers that feed it. May import ``clients`` and the pure packages. Never here: decisions.
"""
