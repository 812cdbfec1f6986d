"""``kubectl bursar node``: a node of NVIDIA's device plugin gives fractions, and is given back.

`steps` is a function of values: from what the cluster says now it has every step, and which are done.
`command` does the first that is not, and looks again; so a command that was cut off goes on.
"""
