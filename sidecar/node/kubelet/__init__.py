"""The agent's access to the kubelet: its PodResources service, by a small gRPC client over a Unix socket.

Imports `sidecar.node.state`. The meaning of the devices is decided in `sidecar.node.state.plugin_devices`.
"""
