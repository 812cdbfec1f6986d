"""The sidecar in each GPU pod: it sends heartbeats to the timekeeper, so that the pod's GPU time is charged.

`reporter` is the pod's process; heartbeats wait in `spool`. `sidecar.node` is the agent of a GPU node.
Imports only small modules of the standard library, and NVIDIA's binding for NVML: the process runs once per
GPU pod, and its memory is counted. Never here: a third-party package, or more of `timekeeper` than
`timekeeper.edge`; the two sides share the wire format (types of `timekeeper.core.wire`).
"""

__version__ = "0.2.0"  # equal to that of `timekeeper.core`
