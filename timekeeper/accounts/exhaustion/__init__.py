"""What follows when an account is over budget and its ``onExhausted`` acts on running pods: who must leave,
in which order, and when.

Pure: values in, decisions out. The calls to the API server are in `settler.evictions`.
"""
