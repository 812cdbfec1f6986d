"""Nodes, pods and DaemonSets of NVIDIA's GPU Operator and of Bursar, as `kubectl bursar node` reads them."""

from tests.worlds import Json

OPERATORS = "nvidia.com/gpu.deploy.device-plugin"


def daemon_set(name: str, namespace: str, selector: dict[str, str], container: str) -> Json:
    labels = {"app": name}
    spec = {
        "nodeSelector": selector,
        "containers": [{"name": container, "image": f"example/{container}:1"}],
        "tolerations": [{"operator": "Exists"}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def plugin() -> Json:
    """The Operator's plugin, as `assets/state-device-plugin` of NVIDIA/gpu-operator has it."""
    name = "nvidia-device-plugin-daemonset"
    return daemon_set(name, "gpu-operator", {OPERATORS: "true"}, "nvidia-device-plugin")
