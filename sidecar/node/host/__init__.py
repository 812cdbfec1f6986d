"""Reads the node's own files: cgroups below ``/proc`` and ``/sys``, and the container runtime's
configuration.

Imports `sidecar.node.values` only. It never writes, never uses the network, and knows nothing of NVML or the
API server.
"""
