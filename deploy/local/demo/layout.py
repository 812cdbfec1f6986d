"""The demo's nodes, namespaces and budgets."""

import json

from deploy.local.cluster import ControlPlane
from deploy.local.demo.run import StepError
from deploy.local.kwok_nodes import EXAMPLE_DRIVER, device_class, device_pool, kwok_node
from deploy.local.stack import Stack

SMALL_BUDGET_HOURS = "0.00111111"  # 4 GPU-seconds, less four milli-GPU-milliseconds
SMALL_BUDGET = 3_999_996

SETTINGS = {"_settings": "lookahead: 0s\n"}
BUDGETS = {
    "team-a": "gpuHours: 100\nperiod: month\nonExhausted: reclaim\n",
    "team-b": f"gpuHours: {SMALL_BUDGET_HOURS}\nperiod: once\nonExhausted: reclaim\nwarnAt: 0.5\n",
    "team-c": f"gpuHours: {SMALL_BUDGET_HOURS}\nperiod: once\nonExhausted: hold\n",
}


def lay_out(stack: Stack) -> None:
    """Makes nodes with cards, one with devices for claims, namespaces and their budgets."""
    nodes = [
        kwok_node("big", cards=2, memory_mib=81_920, model="H100", labels={"pool": "big"}),
        kwok_node("small", cards=2, memory_mib=8_000, model="T4", labels={"pool": "small"}),
        kwok_node("single", cards=1, memory_mib=40_960, model="A100", labels={"pool": "single"}),
    ]
    for node in nodes:
        stack.cp.api.call("POST", "/api/v1/nodes", node)
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("devices", labels={"pool": "devices"}))
    for plural, body in (
        ("deviceclasses", device_class(EXAMPLE_DRIVER)),
        ("resourceslices", device_pool("devices", devices=4)),
    ):
        stack.cp.api.call("POST", f"/apis/resource.k8s.io/v1/{plural}", body)
    for namespace in BUDGETS:
        stack.cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    for name, data in (("bursar-settings", SETTINGS), ("bursar-budgets", BUDGETS)):
        apply_config_map(stack.cp, name, data)


def apply_config_map(cp: ControlPlane, name: str, data: dict[str, str]) -> None:
    """Writes a ConfigMap by `kubectl apply --server-side`, as people do; their own meets no conflict."""
    metadata = {"name": name, "namespace": "bursar-system"}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    done = cp.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(manifest))
    if done.returncode:
        raise StepError(done.stderr)
