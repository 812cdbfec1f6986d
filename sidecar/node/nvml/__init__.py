"""The agent's access to NVML: the cards and their health, their load and processes, and the driver's events.

Imports `sidecar.nvml` and `sidecar.node.values`. `sidecar.node.state.health` decides what a reading means
over time; this package keeps NVML handles and no other state.
"""
