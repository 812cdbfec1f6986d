"""HTTP routes and the worker that serves them.

Lives here: bodies, status codes, log lines per call. May import everything below it in the extender. Never
here: decisions about nodes, cards or pods; those are in `scheduler_ext.verbs`.
"""
