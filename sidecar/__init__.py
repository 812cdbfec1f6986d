"""The sidecar in each GPU pod: it sends heartbeats to the timekeeper, so that the pod's GPU time is charged.

The modules here are the pod's process; `sidecar.node` is the agent of a GPU node, which uses the same parts.
Imports the standard library and NVIDIA's binding for NVML, nothing else, and of the standard library only
what is small: the process runs once per GPU pod, and its memory is counted. Anything that needs a third-party
package or `timekeeper` never belongs here; the two sides share only the wire format (types of
`timekeeper.core.wire`).
"""
