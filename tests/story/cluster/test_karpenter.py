"""Karpenter, built from its Go module with the provider whose nodes are objects only, beside our extender.

With the NodeOverlay and the startup taint of docs/karpenter.md it makes a node for a pod that needs cards. It
does not see that the sums of a node can fit where no card does. With `--gang-autoscale=on` it makes nodes for
gangs, one after the other."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.local.build import binaries, module_file
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import inventory, our_capacity
from deploy.local.kwok_stages import FAKE_NODE
from deploy.local.launcher import Launcher
from deploy.local.ports import free_port
from deploy.local.stack import Stack
from deploy.local.tools import KARPENTER, KARPENTER_TOOLS
from tests.story.cluster.test_gangs import Place, member, restart
from tests.story.cluster.test_held_pods import template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import MERGE, create_namespace, kubectl
from tests.worlds import Json

# Karpenter's build takes minutes.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

PAGE = Path(__file__).parents[3] / "docs/karpenter.md"
CRDS = (
    "pkg/apis/crds/karpenter.sh_nodeclaims.yaml",
    "pkg/apis/crds/karpenter.sh_nodepools.yaml",
    "pkg/apis/crds/karpenter.sh_nodeoverlays.yaml",
    "kwok/apis/crds/karpenter.kwok.sh_kwoknodeclasses.yaml",
)
CARDS, MEMORY_MIB = 8, 81_920
NODE_CLASS = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
    "spec": {},
}


def documented() -> tuple[Json, Json]:
    """The page's NodeOverlay and NodePool."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    overlay, pool = (yaml.safe_load(block) for block in blocks)
    return overlay, pool


def whole_pool() -> Json:
    """The page's NodePool, with the rest that is the user's."""
    _, pool = documented()
    template = pool["spec"]["template"]
    key, _, value = FAKE_NODE.partition("=")
    template["metadata"]["annotations"] = {key: value}
    template["spec"] |= {
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
        "requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        ],
    }
    return {**pool, "spec": {**pool["spec"], "disruption": {"consolidateAfter": "Never"}}}


def instance_types() -> list[Json]:
    """The one type that the provider offers. It says nothing of Bursar's resources."""
    needs = [("karpenter.sh/capacity-type", "on-demand"), ("topology.kubernetes.io/zone", "zone-a")]
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in needs]
    return [
        {
            "name": "p5.48xlarge",
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {"cpu": "192", "memory": "2048Gi", "ephemeral-storage": "1Ti"},
            "offerings": [{"Price": 98.32, "Requirements": requirements}],
        }
    ]


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    with Stack(control_plane) as started:
        yield started


@pytest.fixture(scope="module")
def karpenter(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """It runs, as the administrator; the path of its log."""
    folder = tmp_path_factory.mktemp("karpenter")
    program = binaries(print, KARPENTER_TOOLS)["kwok-karpenter"]
    for path in CRDS:
        kubectl(stack.cp, "create", "-f", str(module_file(KARPENTER, path, print)))
    kubectl(stack.cp, "wait", "--for=condition=Established", "crd", "--all", "--timeout=5m")
    (folder / "types.json").write_text(json.dumps(instance_types()))
    environment = {
        **stack.environment(),
        "KUBECONFIG": str(stack.cp.admin_kubeconfig),
        "SYSTEM_NAMESPACE": "kube-system",
    }
    flags = [
        f"--instance-types-file-path={folder}/types.json",
        f"--metrics-port={free_port()}",
        f"--health-probe-port={free_port()}",
        "--disable-leader-election=true",
        "--feature-gates=NodeOverlay=true",
    ]
    log = folder / "log"
    with Launcher() as launcher, log.open("wb") as output:
        launcher.start([str(program), *flags], output, environment)
        yield log


@pytest.fixture(scope="module", autouse=True)
def pool(stack: Stack, karpenter: Path) -> None:
    """The page's NodeOverlay and NodePool, without any node."""
    overlay, _ = documented()
    for each in (overlay, NODE_CLASS, whole_pool()):
        kubectl(stack.cp, "create", "-f", "-", input=json.dumps(each))


def nodes(stack: Stack) -> list[Json]:
    found: list[Json] = stack.cp.api.call("GET", "/api/v1/nodes")["items"]
    return found


def agent_reports(stack: Stack, name: str, cards: int) -> None:
    """What the node's agent does once it has read its cards: capacity, inventory, then the taint goes."""
    path, startup = f"/api/v1/nodes/{name}", "startup-taint.cluster-autoscaler.kubernetes.io/bursar"
    stack.wait(
        "the node to have nothing but the startup taint",
        lambda: (
            [each["key"] for each in stack.cp.api.call("GET", path)["spec"].get("taints", ())] == [startup]
        ),
    )
    capacity = our_capacity(cards, MEMORY_MIB)
    stack.cp.api.call(
        "PATCH", f"{path}/status", {"status": {"capacity": capacity, "allocatable": capacity}}, MERGE
    )
    stated = {"bursar.dev/inventory": inventory(name, cards, MEMORY_MIB, "H100")}
    stack.cp.api.call("PATCH", path, {"metadata": {"annotations": stated}}, MERGE)
    kubectl(stack.cp, "taint", "node", name, f"{startup}-")


def test_a_pod_gets_a_node_and_a_pod_that_only_fits_by_sums_gets_none(stack: Stack) -> None:
    pods = create_namespace(stack.cp, "team")
    set_budgets(stack, team="gpuHours: 1000\n")

    def pod(name: str, percent: int) -> None:
        made = template(percent=percent)
        made["metadata"]["name"] = name
        stack.cp.api.call("POST", pods, made)

    def runs(name: str) -> bool:
        return bool(stack.cp.api.call("GET", f"{pods}/{name}")["status"].get("phase") == "Running")

    pod("first", 60)
    stack.wait("Karpenter to make a node", lambda: len(nodes(stack)) == 1)
    name = nodes(stack)[0]["metadata"]["name"]
    assert not runs("first")

    agent_reports(stack, name, 2)
    stack.wait("the pod to run", lambda: runs("first"))
    assert stack.cp.api.call("GET", f"{pods}/first")["spec"]["nodeName"] == name

    pod("second", 60)
    stack.wait("both cards to be shared", lambda: runs("second"))
    pod("third", 60)

    def nominated() -> list[str]:
        events = stack.cp.api.call("GET", "/api/v1/namespaces/team/events")["items"]
        return [
            each["message"]
            for each in events
            if each["reason"] == "Nominated" and each["involvedObject"]["name"] == "third"
        ]

    stack.wait("Karpenter to say that the pod fits", nominated)
    assert name in nominated()[0]
    assert [each["metadata"]["name"] for each in nodes(stack)] == [name]
    assert not runs("third")
    stack.cp.api.call("DELETE", pods)  # so no node comes for it


class Members(Place):
    """Two gangs of two pods, each of which needs a whole node."""

    def of(self, gang: str) -> list[Json]:
        """Its pods."""
        return [each for each in self.pods() if each["metadata"]["name"].startswith(gang)]

    def seen(self, gang: str) -> set[tuple[int, str]]:
        """What an autoscaler reads of the gang's pods: the number of gates, and why they have no node."""
        found = set()
        for pod in self.of(gang):
            conditions = {each["type"]: each for each in pod["status"].get("conditions", ())}
            scheduled = conditions.get("PodScheduled", {"status": "", "reason": ""})
            why = f"{scheduled['status']} {scheduled.get('reason', '')}".strip()
            found.add((len(pod["spec"].get("schedulingGates", ())), why))
        return found


WAITS, IS_COUNTED, RUNS = {(1, "False SchedulingGated")}, {(0, "False Unschedulable")}, {(0, "True")}


def test_an_empty_pool_gets_the_nodes_of_one_gang_after_the_other(stack: Stack) -> None:
    set_budgets(stack, team="gpuHours: 1000\n", pair="gpuHours: 1000\n")
    restart(stack, "--gang-autoscale=on")
    place, before = Members(stack, "pair"), {each["metadata"]["name"] for each in nodes(stack)}

    def new() -> list[str]:
        return sorted({each["metadata"]["name"] for each in nodes(stack)} - before)

    for gang in ("one", "two"):
        for name in (f"{gang}-a", f"{gang}-b"):
            stack.cp.api.call("POST", place.path, member(name, gang, 2, 100 * CARDS))
        stack.wait("it to wait for cards", lambda gang=gang: place.seen(gang) == WAITS)  # type: ignore[misc]
        time.sleep(1)  # so the second is younger, by whole seconds
    stack.wait("the first to be shown", lambda: place.seen("one") == IS_COUNTED, "extender")
    stack.wait("a node for each of its pods", lambda: len(new()) == 2)

    first, second = new()
    agent_reports(stack, first, CARDS)
    kubectl(stack.cp, "label", "node", first, "of=beside")
    beside = template(percent=100, nodeSelector={"of": "beside"})
    beside["metadata"]["name"] = "beside"
    stack.cp.api.call("POST", place.path, beside)
    stack.wait("another pod to be refused there", lambda: "kept for gang pair/one" in why(place, "beside"))
    assert place.bound() == []
    assert place.seen("one") == IS_COUNTED
    assert place.seen("two") == WAITS

    agent_reports(stack, second, CARDS)
    stack.wait(*place.are_bound("one-a", "one-b"))
    assert {each["spec"]["nodeName"] for each in place.of("one")} == {first, second}
    assert place.seen("one") == RUNS
    stack.cp.api.call("DELETE", f"{place.path}/beside")

    stack.wait("the second gang's nodes", lambda: len(new()) == 4, "extender")
    for name in set(new()) - {first, second}:
        agent_reports(stack, name, CARDS)
    stack.wait(*place.are_bound("one-a", "one-b", "two-a", "two-b"))


def why(place: Place, name: str) -> str:
    """kube-scheduler's reason."""
    return str(place.stack.cp.api.call("GET", f"{place.path}/{name}")["status"].get("conditions"))
