"""The node agent: one process on each GPU node. It reads the cards by NVML, writes their inventory, health
and holders on the Node object, reports each pod's use to the timekeeper, and serves metrics.

`run` is the main loop; `agent`, `usage_tasks` and `holder_survey` hold the state between readings. Edges that
do not import each other: `nvml`, `kube`, `kubelet`, `host`. Below them `state` decides without any I/O, over
`values`. Imports `sidecar`, the standard library and NVML's binding; the agent has the sidecar's image. Code
of the pod's side never imports this package.
"""
