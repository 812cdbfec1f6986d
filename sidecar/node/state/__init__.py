"""The agent's decisions: pure functions and state machines over `sidecar.node.values`.

Health of cards, holders, unauthorized use, use and overuse, Events, the patch of the node, usage reports and
the metrics page. Moments are arguments. Nothing here may use a clock, the network, the disk or a process.
"""
