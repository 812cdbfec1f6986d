"""A node of the GPU Operator is given to fractions and taken back, on a real API server: kwok runs the
DaemonSets' pods, the node's agent is the real one with the fake library, and a thread is the kubelet that
counts the plugin's devices."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from deploy.local.stack import Stack
from tests.cli.node_worlds import OPERATORS, plugin
from tests.deploy.reading import AGENTS, MANIFESTS, ROOT
from tests.docs.cluster.test_access import kubeconfig_of
from tests.docs.shell import console
from tests.node.cluster.test_on_api_server import Agent, World, running
from tests.support.control_plane import MERGE, create_namespace
from tests.support.waiting import at_once
from tests.support.worker_control_plane import Lender
from tests.worlds import Json

pytestmark = pytest.mark.traced

NODE = "gpu-1"
PATH = f"/api/v1/nodes/{NODE}"
# docs/nodes.md, without `kubectl bursar`
DRY_RUN, FRACTIONS, WHOLE = (
    line.replace("NODE", NODE).split()[2:]
    for block in console((ROOT / "docs" / "nodes.md").read_text())
    for line in block.splitlines()
)
OFF, ON = {OPERATORS: "false"}, {OPERATORS: "true"}


@pytest.fixture(scope="module")
def stack(lender: Lender) -> Iterator[Stack]:
    """All of Bursar, and a GPU Operator that has put its plugin on the only node with GPUs."""
    with lender.stack() as running_stack:
        call = running_stack.cp.api.call
        (agents,) = (
            each
            for each in yaml.safe_load_all((MANIFESTS / "node-agent.yaml").read_text())
            if each and each["kind"] == "DaemonSet"
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
            there = any(each["metadata"]["name"].startswith("nvidia-") for each in pods_there(self.stack))
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


def pods_there(stack: Stack) -> list[Json]:
    found: list[Json] = stack.cp.api.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}")["items"]
    return found


def bursar(stack: Stack, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, str]:
    """Exit code and output of `kubectl bursar`, as the cluster's administrator or another user."""
    command, environment = typed(stack, *arguments, kubeconfig=kubeconfig)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


def typed(stack: Stack, *arguments: str, kubeconfig: Path | None = None) -> tuple[list[str], dict[str, str]]:
    """The command and its environment."""
    folder = Path(stack.cp.kubectl_path).parent
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "timekeeper.cli.main", *arguments]
    return [*command, f"--kubeconfig={kubeconfig or stack.cp.admin_kubeconfig}"], environment


def interrupted(stack: Stack) -> None:
    """Once its time ends, and once it is killed, while the kubelet still counts the plugin's devices: the
    node stays on its way, and the next command goes on from there."""
    code, said = bursar(stack, *FRACTIONS, "--timeout=2s")
    assert code == 1
    assert "not within the time: " in said
    assert "; the same command goes on from here" in said
    command, environment = typed(stack, *FRACTIONS)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert any("wait: the kubelet counts none" in line for line in killed.stdout)
        killed.kill()
    found = node(stack)
    assert found["spec"]["unschedulable"] is True
    assert found["metadata"]["annotations"]["bursar.dev/node-change"] == "fractions"
    assert OFF.items() <= found["metadata"]["labels"].items()


def versions(stack: Stack) -> list[str]:
    """Of everything that the command could touch."""
    call = stack.cp.api.call
    listed = [node(stack), *pods_there(stack)]
    listed += call("GET", "/apis/apps/v1/daemonsets")["items"]
    return [each["metadata"]["resourceVersion"] for each in listed]


def pod(name: str, limits: Json, **spec: Any) -> Json:
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def is_bound(stack: Stack, path: str) -> bool:
    return "nodeName" in stack.cp.api.call("GET", path)["spec"]


def test_a_node_of_the_operator_serves_half_a_card_and_goes_back(stack: Stack, tmp_path: Path) -> None:
    call = stack.cp.api.call
    path = create_namespace(stack.cp, "team")
    stack.wait("the plugin's pod", lambda: any(map(is_plugins, pods_there(stack))))
    call("POST", path, pod("half", {"bursar.dev/gpu-percent": "50"}))
    reader, why = stack.reader_token(), "/v1/explain/team/half"

    def says_how() -> bool:
        found = stack.get(why, reader)["waitsFor"]
        return any("kubectl bursar node fractions NODE" in each for each in found)

    stack.wait("what would help", says_how, "extender")
    # of a namespace without Bursar, which holds both cards
    others = create_namespace(stack.cp, "others", **{"bursar.dev/exempt": "true"})
    call("POST", others, pod("pair", {"nvidia.com/gpu": "2"}, nodeName=NODE))

    stack.wait("all to run and to be counted", lambda: is_at_rest(stack))

    before = versions(stack)
    code, said = bursar(stack, *DRY_RUN)
    assert (code, versions(stack)) == (0, before)
    assert "others/pair" in said
    assert f"kubectl label node {NODE} {OPERATORS}=false" in said
    code, said = bursar(stack, *FRACTIONS)
    assert (code, versions(stack)) == (1, before)
    assert "1 pods must end first: others/pair; nothing was changed" in said

    call("DELETE", f"{others}/pair?gracePeriodSeconds=0")
    interrupted(stack)
    with kubelet(stack), agent_of(stack, tmp_path):
        code, said = bursar(stack, *FRACTIONS)
        assert code == 0, said
        assert f"Node {NODE} offers bursar.dev/gpu-memory 163840, bursar.dev/gpu-percent 200." in said
        assert "2 of 2 cards are healthy" in said
        found = node(stack)
        assert OFF.items() <= found["metadata"]["labels"].items()
        assert "unschedulable" not in found["spec"]
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

        ours = ["bursar.dev/gpu-percent"]
        stack.wait("both workers to know", lambda: all(each == ours for each in at_once(asked)))
        call("POST", path, pod("one-of-ours", {"nvidia.com/gpu": "1"}))
        stack.wait("the other card", lambda: is_bound(stack, f"{path}/one-of-ours"), "extender")
        call("DELETE", f"{path}/one-of-ours?gracePeriodSeconds=0")
        call("DELETE", f"{maps}/bursar-budgets")
        stack.wait("both to forget", lambda: all(each != ours for each in at_once(asked)))

        before = [node(stack)["metadata"]["labels"], node(stack)["spec"]]
        assert bursar(stack, *FRACTIONS)[0] == 0, "again: nothing is left to do"
        assert [node(stack)["metadata"]["labels"], node(stack)["spec"]] == before

        uid = call("GET", f"{path}/half")["metadata"]["uid"]
        runs(tmp_path, uid)
        stack.wait("the agent to see it", lambda: uid in holders(stack))
        code, said = bursar(stack, *WHOLE)
        assert code == 1
        assert "1 pods must end first: team/half; nothing was changed" in said
        call("DELETE", f"{path}/half?gracePeriodSeconds=0")
        code, said = bursar(stack, *WHOLE)
        assert (code, f"1 pods must end first: a deleted pod with the UID {uid}" in said) == (1, True)
        ended = threading.Timer(3, runs, (tmp_path, uid, 0))
        ended.start()
        code, said = bursar(stack, *WHOLE, "--wait")
        ended.join()
        assert code == 0, said
        assert f"Node {NODE} offers nvidia.com/gpu 2." in said
        found = node(stack)
        assert ON.items() <= found["metadata"]["labels"].items()
        assert "unschedulable" not in found["spec"]
        assert not [name for name in found["status"]["capacity"] if name.startswith("bursar.dev/")]
        call("POST", path, pod("one", {"nvidia.com/gpu": "1"}))
        stack.wait("a whole card", lambda: is_bound(stack, f"{path}/one"), "extender")


RIGHTS = (
    (("", "nodes", "get"), ("", "pods", "list"), ("apps", "daemonsets", "list")),
    (("", "nodes", "patch"),),
    (("", "nodes/status", "patch"),),
)


def test_who_lacks_a_right_hears_of_it_before_anything_is_changed(stack: Stack, tmp_path: Path) -> None:
    user = kubeconfig_of(stack.cp, "operators", tmp_path)
    stack.wait("all to run and to be counted", lambda: is_at_rest(stack))
    before = versions(stack)
    said = [bursar(stack, *FRACTIONS, kubeconfig=user)[1]]
    for number, rights in enumerate(RIGHTS):
        grant(stack, f"part-{number}", rights)
        said.append(bursar(stack, *FRACTIONS, "--dry-run", kubeconfig=user)[1])

    assert [
        "cannot get resource" in said[0],
        "you may not patch nodes: " in said[1],
        "you may not patch nodes: " in said[2],
        "you may not patch nodes/status: " in said[2],
        "you may not" in said[3],
    ] == [True, True, False, True, False]
    assert versions(stack) == before


def grant(stack: Stack, name: str, rights: tuple[tuple[str, str, str], ...]) -> None:
    """Gives the group of operators these rights: each an API group, a resource and a verb."""
    call, path = stack.cp.api.call, "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [group], "resources": [what], "verbs": [verb]} for group, what, verb in rights]
    call("POST", f"{path}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "operators"}],
    }
    call("POST", f"{path}/clusterrolebindings", binding)


def is_at_rest(stack: Stack) -> bool:
    """Whether kwok and the controllers have nothing to write any more."""
    sets = stack.cp.api.call("GET", "/apis/apps/v1/daemonsets")["items"]
    states = [each["status"] for each in sets]
    are_counted = all(each.get("numberReady", 0) == each["desiredNumberScheduled"] for each in states)
    return are_counted and all(each["status"]["phase"] == "Running" for each in pods_there(stack))


def is_plugins(raw: Json) -> bool:
    return bool(raw["metadata"]["name"].startswith("nvidia-"))


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


def holders(stack: Stack) -> str:
    """What the agent reports."""
    return str(node(stack)["metadata"]["annotations"].get("bursar.dev/holders"))
