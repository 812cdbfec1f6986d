"""A Kubernetes control plane on this machine, and all of Bursar on it, for tests, the demo and development.

`build` and `tools` find or build the binaries; `cluster` runs etcd, kube-apiserver, controllers,
kube-scheduler and kwok; `stack` and `sidecars` run Bursar's roles as processes; `real_node` adds a real
kubelet and containerd, and `cleanup` removes what it leaves. Imports no role of Bursar: roles run as
processes, as in a cluster. Nothing here is shipped or runs in production.
"""
