"""docs/nodes.md, step by step, on a real API server: a node of the GPU Operator is given to fractions and
taken back. kwok runs the DaemonSets' pods, the node's agent is the real one with the fake library, and a
thread is the kubelet that counts the plugin's devices."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from deploy.local.stack import Stack
from tests.deploy.reading import AGENTS, MANIFESTS, ROOT
from tests.docs.shell import console, run
from tests.node.cluster.test_on_api_server import CAPACITY, Agent, World, running
from tests.support.control_plane import MERGE, create_namespace
from tests.support.waiting import at_once
from tests.support.worker_control_plane import Lender
from tests.worlds import Json

pytestmark = pytest.mark.cluster

NODE = "gpu-1"
PATH = f"/api/v1/nodes/{NODE}"
THERE, BACK = (ROOT / "docs" / "nodes.md").read_text().replace("NODE", NODE).split("\n## Take it back\n")
CORDON, LOOK, TAKE_OFF, CLEAN, OFFER, UNCORDON = console(THERE)
(PUT_BACK,) = console(BACK)
PLUGIN = "nvidia-device-plugin-daemonset"
OPERATORS = "nvidia.com/gpu.deploy.device-plugin"
OFF, ON = {OPERATORS: "false"}, {OPERATORS: "true"}


def plugin() -> Json:
    """The Operator's plugin, as `assets/state-device-plugin` of NVIDIA/gpu-operator has it."""
    spec = {
        "nodeSelector": ON,
        "containers": [{"name": "nvidia-device-plugin", "image": "example/nvidia-device-plugin:1"}],
        "tolerations": [{"operator": "Exists"}],
    }
    return {
        "metadata": {"name": PLUGIN, "namespace": "gpu-operator"},
        "spec": {
            "selector": {"matchLabels": {"app": PLUGIN}},
            "template": {"metadata": {"labels": {"app": PLUGIN}}, "spec": spec},
        },
    }


@pytest.fixture(scope="module")
def stack(lender: Lender) -> Iterator[Stack]:
    """All of Bursar, and a GPU Operator that has put its plugin on the only node with GPUs."""
    with lender.stack() as running_stack:
        call = running_stack.cp.api.call
        (agents,) = (
            manifest
            for manifest in yaml.safe_load_all((MANIFESTS / "node-agent.yaml").read_text())
            if manifest and manifest["kind"] == "DaemonSet"
        )
        if not running_stack.exists(f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets/bursar-node"):
            call("POST", f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets", agents)
        call("POST", "/api/v1/namespaces", {"metadata": {"name": "gpu-operator"}})
        call("POST", "/apis/apps/v1/namespaces/gpu-operator/daemonsets", plugin())
        call("POST", "/api/v1/nodes", kwok_node(NODE, capacity=nvidia_capacity(2), labels=ON))
        yield running_stack


class Kubelet(threading.Thread):
    """Counts the plugin's devices while its pod runs, and none once it has gone; as a kubelet does, it never
    removes the resource."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self.stack, self.ended = stack, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.3):
            there = has_plugin(self.stack)
            known = node(self.stack)["status"]["capacity"].get("nvidia.com/gpu")
            wanted = "2" if there else "0"
            if known not in (None, wanted) or (there and known is None):
                amounts = {"nvidia.com/gpu": wanted}
                body = {"status": {"capacity": amounts, "allocatable": amounts}}
                self.stack.cp.api.call("PATCH", f"{PATH}/status", body, MERGE)


@contextmanager
def kubelet(stack: Stack) -> Iterator[None]:
    thread = Kubelet(stack)
    thread.start()
    try:
        yield
    finally:
        thread.ended.set()
        thread.join()


def node(stack: Stack) -> Json:
    found: Json = stack.cp.api.call("GET", PATH)
    return found


def has_plugin(stack: Stack) -> bool:
    """Whether a pod of the plugin is on the node."""
    listed = stack.cp.api.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}")["items"]
    return any(pod["metadata"]["name"].startswith(PLUGIN) for pod in listed)


def pod(name: str, limits: Json, **spec: Any) -> Json:
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def is_bound(stack: Stack, path: str) -> bool:
    return "nodeName" in stack.cp.api.call("GET", path)["spec"]


def test_by_the_pages_steps_a_node_of_the_operator_serves_half_a_card_and_goes_back(
    stack: Stack, tmp_path: Path
) -> None:
    call = stack.cp.api.call

    def typed(commands: str) -> str:
        return run(stack.cp, commands, tmp_path)

    def in_the_way() -> tuple[list[str], str]:
        """The pods with cards, and what the agent reports."""
        pods, report = LOOK.strip().splitlines()
        return typed(f"set +o pipefail\n{pods}").split(), typed(report)

    path = create_namespace(stack.cp, "team")
    stack.wait("the plugin's pod", lambda: has_plugin(stack))
    call("POST", path, pod("half", {"bursar.dev/gpu-percent": "50"}))
    reader, why = stack.reader_token(), "/v1/explain/team/half"

    def says_how() -> bool:
        waits_for = stack.get(why, reader)["waitsFor"]
        return any("docs/nodes.md gives a node to fractions" in sentence for sentence in waits_for)

    stack.wait("what would help", says_how, "extender")
    # of a namespace without Bursar, which holds both cards
    others = create_namespace(stack.cp, "others", **{"bursar.dev/exempt": "true"})
    call("POST", others, pod("pair", {"nvidia.com/gpu": "2"}, nodeName=NODE))

    assert len(re.findall(r"^\d\. ", THERE, re.MULTILINE)) == 6
    typed(CORDON)
    assert node(stack)["spec"]["unschedulable"] is True
    assert in_the_way() == (["others/pair"], "")
    call("DELETE", f"{others}/pair?gracePeriodSeconds=0")
    assert in_the_way() == ([], "")
    with kubelet(stack), agent_of(stack, tmp_path):
        for commands in (TAKE_OFF, CLEAN, OFFER, UNCORDON):
            typed(commands)

        found = node(stack)
        assert OFF.items() <= found["metadata"]["labels"].items()
        assert "bursar.dev/node-change" not in found["metadata"]["annotations"]
        assert "unschedulable" not in found["spec"]
        assert CAPACITY.items() <= found["status"]["allocatable"].items()
        assert "nvidia.com/gpu" not in found["status"]["capacity"]
        stack.wait("half a card", lambda: is_bound(stack, f"{path}/half"), "extender")

        # whole cards of the plugin's words, in a namespace whose entry sends them to Bursar's nodes
        data = {"team": "gpuHours: 10\nwholeCards: bursar\n"}
        maps = "/api/v1/namespaces/bursar-system/configmaps"
        call("POST", maps, {"metadata": {"name": "bursar-budgets"}, "data": data})

        def asked() -> list[str]:
            dry = call("POST", f"{path}?dryRun=All", pod("dry", {"nvidia.com/gpu": "1"}))
            limits = dry["spec"]["containers"][0]["resources"]["limits"]
            return [name for name, amount in limits.items() if amount != "0"]

        ours = ["bursar.dev/gpu-percent", "cards.bursar.dev/millionths"]
        stack.wait("both workers to know", lambda: all(names == ours for names in at_once(asked)))
        call("POST", path, pod("one-of-ours", {"nvidia.com/gpu": "1"}))
        stack.wait("the other card", lambda: is_bound(stack, f"{path}/one-of-ours"), "extender")
        call("DELETE", f"{path}/one-of-ours?gracePeriodSeconds=0")
        call("DELETE", f"{maps}/bursar-budgets")
        stack.wait("both to forget", lambda: all(names != ours for names in at_once(asked)))

        before = [node(stack)["metadata"]["labels"], node(stack)["spec"]]
        for commands in (CORDON, OFFER, UNCORDON):
            typed(commands)
        assert [node(stack)["metadata"]["labels"], node(stack)["spec"]] == before, "they can be repeated"

        uid = call("GET", f"{path}/half")["metadata"]["uid"]
        runs(tmp_path, uid)
        stack.wait("the agent to see it", lambda: uid in in_the_way()[1])
        typed(CORDON.replace("=fractions", "=whole"))
        assert in_the_way()[0] == ["team/half"]
        call("DELETE", f"{path}/half?gracePeriodSeconds=0")
        pods, report = in_the_way()
        assert (pods, uid in report) == ([], True), "a deleted pod"
        runs(tmp_path, uid, 0)
        stack.wait("its end", lambda: '"known":true,"pods":{}' in in_the_way()[1])
        typed(PUT_BACK)
        typed(UNCORDON)
        found = node(stack)
        assert ON.items() <= found["metadata"]["labels"].items()
        assert "unschedulable" not in found["spec"]
        stack.wait(
            "Bursar's capacities to go", lambda: not CAPACITY.keys() & node(stack)["status"]["capacity"]
        )
        call("POST", path, pod("one", {"nvidia.com/gpu": "1"}))
        stack.wait("a whole card", lambda: is_bound(stack, f"{path}/one"), "extender")


@contextmanager
def agent_of(stack: Stack, folder: Path) -> Iterator[Agent]:
    with running(World(stack.cp), folder, NODE) as agent:
        runs(folder, "00000000-0000-0000-0000-000000000001")  # there is always some pod on a node
        yield agent


def runs(folder: Path, uid: str, processes: int = 1) -> None:
    """A pod has a cgroup on the node, with processes or without."""
    pods = folder / "cgroup" / "kubepods" / f"pod{uid}"
    pods.mkdir(parents=True, exist_ok=True)
    (pods / "cgroup.events").write_text(f"populated {processes}\n")
