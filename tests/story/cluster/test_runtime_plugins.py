"""Plugins of the container runtime learn a pod's cards and limits from its Binding, and from no one else."""

import json

from deploy.local.kwok_nodes import card_uuid, kwok_node
from deploy.local.stack import Stack
from tests.support.control_plane import create_namespace, refused
from tests.timekeeper.cluster.test_metering import Recorder
from tests.worlds import Json

KAIS, NVIDIAS = "gpu-fractioning", "nvidia-ctk-installer"  # the names under which they register
REQUIRED = "required-plugins.noderesource.dev"
READY = "gpu-fractioning.nvidia.com/Ready"
NODES = "/api/v1/nodes"


def add_node(stack: Stack, name: str, plugins: list[str]) -> list[str]:
    """A node with two cards of 81920 MiB, and the plugins that are needed by its agent's word. Returns the
    cards' UUIDs."""
    raw = kwok_node(name, cards=2, memory_mib=81_920)
    written = raw["metadata"]["annotations"]
    inventory = json.loads(written["bursar.dev/inventory"]) | (
        {"nri": {"plugins": plugins, "enforced": True}} if plugins else {}
    )
    written["bursar.dev/inventory"] = json.dumps(inventory)
    stack.cp.api.call("POST", NODES, raw)
    return [card_uuid(name, index) for index in range(2)]


def asking(node: str, containers: dict[str, Json]) -> Json:
    """A pod for this node: container -> its limits without their domain."""
    return {
        "metadata": {"name": f"on-{node}"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [
                {
                    "name": name,
                    "image": "example/app:1",
                    "resources": {"limits": {f"bursar.dev/{key}": value for key, value in limits.items()}},
                }
                for name, limits in containers.items()
            ],
        },
    }


def of_plugins(pod: Json) -> Json:
    """Its annotations that a plugin of the runtime reads."""
    annotations = pod["metadata"].get("annotations", {})
    return {
        name: value
        for name, value in annotations.items()
        if name.startswith(("nvidia.com/", "nvidia.cdi.k8s.io/", REQUIRED))
    }


def test_the_binding_names_cards_and_limits_to_the_nodes_plugin_at_once_and_for_good(stack: Stack) -> None:
    pods, call = create_namespace(stack.cp, "plugged"), stack.cp.api.call
    half, memory, whole = {"gpu-percent": "50"}, {"gpu-memory": "1024"}, {"gpu-percent": "100"}
    containers = {"a": half, "b": memory, "whole": whole, "none": {}}
    plugins = {"kais": [KAIS], "nvidias": ["bursar", NVIDIAS], "ours": ["bursar"], "plain": [], "ready": []}
    cards = {node: add_node(stack, node, needed) for node, needed in plugins.items()}
    status = {"conditions": [{"type": READY, "status": "True", "reason": "AllDaemonsReady"}]}
    call("PATCH", f"{NODES}/ready/status", {"status": status}, "application/strategic-merge-patch+json")

    with Recorder(stack.cp, pods) as seen:
        for node in cards:
            call("POST", pods, asking(node, containers))
        stack.wait(
            "all to be bound",
            lambda: all("nodeName" in call("GET", f"{pods}/on-{each}")["spec"] for each in cards),
        )
        bound = {node: call("GET", f"{pods}/on-{node}") for node in cards}

    visible = {
        node: {name: pod["metadata"]["annotations"][f"visible-devices.bursar.dev/{name}"] for name in "ab"}
        for node, pod in bound.items()
    }
    for node in ("kais", "ready"):
        assert of_plugins(bound[node]) == {
            "nvidia.com/container.a.gpus.devices": visible[node]["a"],
            "nvidia.com/container.a.gpu-memory.request": "40960Mi",
            "nvidia.com/container.a.gpu-memory.limit": "40960Mi",
            "nvidia.com/container.b.gpus.devices": visible[node]["b"],
            "nvidia.com/container.b.gpu-memory.request": "1024Mi",
            "nvidia.com/container.b.gpu-memory.limit": "1024Mi",
        }
        assert visible[node]["a"] in cards[node]
    names = of_plugins(bound["nvidias"])
    assert names.pop(REQUIRED) == f'["bursar", "{NVIDIAS}"]'
    assert names.keys() == {f"nvidia.cdi.k8s.io/container.{name}" for name in ("a", "b", "whole")}
    assert names["nvidia.cdi.k8s.io/container.a"] == f"nvidia.com/gpu={visible['nvidias']['a']}"
    assert of_plugins(bound["ours"]) == {REQUIRED: '["bursar"]'}
    assert of_plugins(bound["plain"]) == {}

    states = [state for lived in seen.pods.values() for state in lived.states]
    before = [state for state in states if "nodeName" not in state["spec"]]
    assert [of_plugins(state) for state in before] == [{}] * len(before)
    assert len(before) >= len(cards)
    for state in states:
        if "nodeName" in state["spec"]:
            assert of_plugins(state) == of_plugins(bound[state["spec"]["nodeName"]])

    for node in ("kais", "nvidias", "ours"):
        for name in of_plugins(bound[node]):
            for value in ("900Gi", None):
                patch = {"metadata": {"annotations": {name: value}}}
                said = refused(stack.cp, "PATCH", f"{pods}/on-{node}", patch)
                assert f"metadata.annotations[{name}]" in said
    more = {"metadata": {"annotations": {"nvidia.com/container.a.gpu-compute.mode": "sm-sharing"}}}
    assert "must not change" in refused(stack.cp, "PATCH", f"{pods}/on-kais", more)
    assert refused(stack.cp, "PATCH", f"{pods}/on-kais", {"metadata": {"labels": {"own": "x"}}}) == ""


def test_no_user_writes_them_at_a_pods_creation(stack: Stack) -> None:
    pods = create_namespace(stack.cp, "plugs")

    for name in (
        "nvidia.com/container.a.gpus.devices",
        "nvidia.com/container.a.gpu-memory.limit",
        "nvidia.cdi.k8s.io/container.a",
        REQUIRED,
        f"{REQUIRED}/container.a",
    ):
        pod = asking("kais", {"a": {"gpu-percent": "1"}})
        pod["metadata"]["annotations"] = {name: "all"}
        said = refused(stack.cp, "POST", pods, pod)
        assert f"metadata.annotations[{name}]: the container runtime, or a plugin of it" in said
