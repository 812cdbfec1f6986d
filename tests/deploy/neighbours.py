"""What clusters with GPUs have beside Bursar: pods of the GPU Operator, of kube-prometheus and of CNIs, with
the fields by which they reach their nodes. Facts of the projects' manifests: `assets` of gpu-operator,
`nodeExporter-daemonset.yaml` of kube-prometheus, `kube-flannel.yml`, `calico.yaml`, and the chart of cilium.
"""

from typing import Any

from tests.worlds import Json

ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def daemon_set(namespace: str, name: str, spec: Json, paths: tuple[str, ...] = (), **fields: Any) -> Json:
    """One container with these paths of the node. ``spec``: of the container; ``fields``: of the pod."""
    volumes = [{"name": f"v{at}", "hostPath": {"path": path}} for at, path in enumerate(paths)]
    mounts = [{"name": f"v{at}", "mountPath": f"/host{path}"} for at, path in enumerate(paths)]
    container = {"name": name, "image": f"example/{name}", "volumeMounts": mounts, **spec}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "volumes": volumes,
                    "tolerations": [{"operator": "Exists"}],
                    **fields,
                },
            },
        },
    }


PRIVILEGED: Json = {"securityContext": {"privileged": True}}
HOST: Json = {"hostNetwork": True, "hostPID": True}
CNI = ("/opt/cni/bin", "/etc/cni/net.d", "/run/xtables.lock", "/lib/modules")

GPU_OPERATOR = [
    daemon_set(
        "gpu-operator",
        "nvidia-driver-daemonset",
        PRIVILEGED,
        (
            "/run/nvidia",
            "/etc",
            "/sys/module/firmware_class/parameters/path",
            "/lib/firmware",
            "/dev/log",
            "/run/mellanox/drivers",
        ),
        hostPID=True,
    ),
    daemon_set(
        "gpu-operator",
        "nvidia-container-toolkit-daemonset",
        PRIVILEGED,
        ("/usr/local/nvidia", "/run/nvidia", "/etc/containerd", "/run/containerd", "/var/run/cdi", "/dev"),
        hostPID=True,
    ),
    daemon_set(
        "gpu-operator",
        "nvidia-device-plugin-daemonset",
        {**PRIVILEGED, "env": [ALL, {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]},
        (
            "/var/lib/kubelet/device-plugins",
            "/run/nvidia",
            "/",
            "/var/run/cdi",
            "/run/nvidia/mps",
            "/run/nvidia/mps/shm",
        ),
    ),
    daemon_set(
        "gpu-operator",
        "nvidia-dcgm-exporter",
        {**PRIVILEGED, "env": [ALL], "ports": [{"name": "metrics", "containerPort": 9400}]},
        ("/var/lib/kubelet/pod-resources", "/run/nvidia"),
    ),
    daemon_set(
        "gpu-operator",
        "nvidia-mig-manager",
        PRIVILEGED,
        ("/sys", "/", "/run/nvidia", "/dev"),
        hostPID=True,
        hostIPC=True,
    ),
    daemon_set(
        "gpu-operator",
        "gpu-feature-discovery",
        {**PRIVILEGED, "env": [ALL]},
        ("/etc/kubernetes/node-feature-discovery/features.d", "/sys", "/run/nvidia", "/"),
    ),
    daemon_set(
        "gpu-operator",
        "nvidia-operator-validator",
        {**PRIVILEGED, "env": [ALL]},
        ("/run/nvidia/validations", "/run/nvidia/driver", "/", "/dev/char"),
    ),
    # the validator's workload, which asks for a card
    daemon_set("gpu-operator", "nvidia-cuda-validator", {"resources": {"limits": {"nvidia.com/gpu": "1"}}}),
]
PROMETHEUS = [
    daemon_set(
        "monitoring",
        "node-exporter",
        {
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"add": ["SYS_TIME"], "drop": ["ALL"]},
            }
        },
        ("/sys", "/"),
        **HOST,
        securityContext={"runAsNonRoot": True, "runAsUser": 65534},
    ),
]
CNIS = [
    daemon_set(
        "kube-flannel",
        "kube-flannel-ds",
        {"securityContext": {"privileged": False, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}},
        ("/run/flannel", *CNI[:3]),
        hostNetwork=True,
    ),
    daemon_set(
        "calico-system",
        "calico-node",
        PRIVILEGED,
        (
            *CNI,
            "/var/run/calico",
            "/var/lib/calico",
            "/sys/fs",
            "/var/run/nodeagent",
            "/var/log/calico/cni",
            "/proc",
        ),
        hostNetwork=True,
    ),
    daemon_set(
        "kube-system",
        "cilium",
        {**PRIVILEGED},
        (*CNI, "/proc", "/sys/fs/bpf", "/var/run/cilium", "/sys"),
        hostNetwork=True,
    ),
]
NEIGHBOURS = [*GPU_OPERATOR, *PROMETHEUS, *CNIS]
