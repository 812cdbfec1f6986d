"""The agent's access to NVML: the cards and their health, their load and processes, and the driver's events.

Imports `sidecar.nvml` and `sidecar.node.values`. What a reading means over time is decided in
`sidecar.node.state.health`; this package remembers handles only.
"""
