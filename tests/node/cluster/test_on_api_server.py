"""The agent as a process against a real API server, with its own account's token: what it writes, what it may
write, and what it puts right. The cards are those of the fake library."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.local.api import AdminApi, ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.identity import LocalAuthority
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from sidecar.node.state.device_slices import ClaimedDevice, cards_of, slices_path
from tests.deploy.reading import AGENTS, MANIFESTS, SAMPLES, the
from tests.nvml import describe, fake_nvml
from tests.sidecar.worlds import ROOT, Arrival, Timekeeper, events
from tests.support.control_plane import apply_files, kubectl
from tests.support.shape import installed, shape_of
from tests.support.waiting import eventually
from timekeeper.core.request.cards import decode_inventory

pytestmark = pytest.mark.traced

MERGE = "application/merge-patch+json"
ACCOUNT = "bursar-node"
TWO = "card GPU-a 37 1200 81920\ncard GPU-b 0 0 81920\n"
LOST = TWO + "fail nvmlDeviceGetMemoryInfo_v2 GPU_IS_LOST GPU-a\n"
CAPACITY = {
    "bursar.dev/gpu-percent": "200",
    "bursar.dev/gpu-memory": "163840",
    "bursar.dev/gpu-count": "2k",
    "cards.bursar.dev/millionths": "2M",
}
WRITTEN = 'bursar_node_writes_total{result="written"}'
# Runs the agent with the files that its DaemonSet mounts in the folder that is its first argument.
AGENT = """
import sys
from sidecar.node import __main__, run, settings

folder = sys.argv.pop(1)
run.ACCOUNT = folder
names = {"BURSAR_TOKEN_FILE": "for-timekeeper", "BURSAR_CA": "timekeeper.crt", "BURSAR_SPOOL": "spool"}
assert names.keys() == settings._FILES.keys()
settings._FILES.update((name, f"{folder}/{file}") for name, file in names.items())
sys.exit(__main__.main())
"""


@dataclass(frozen=True, slots=True)
class World:
    """A control plane with the agent's rights and its policy, and who asks as what."""

    cp: ControlPlane

    def call(self, method: str, path: str, body: object = None, content: str = "application/json") -> Any:
        return self.cp.api.call(method, path, body, content)

    def node(self, name: str) -> Any:
        return self.call("GET", f"/api/v1/nodes/{name}")

    def status(self, name: str, patch: dict[str, Any]) -> None:
        """Change a node's status as an administrator."""
        self.call("PATCH", f"/api/v1/nodes/{name}/status", patch, MERGE)

    def make_node(self, name: str, **given: Any) -> None:
        self.call("POST", "/api/v1/nodes", kwok_node(name, **given))

    def token(self, node: str | None) -> str:
        """A token of the agent's account: of a pod on this node, or of no pod."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if node is not None:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", **self._agents_pod(node)}
        path = f"/api/v1/namespaces/{AGENTS}/serviceaccounts/{ACCOUNT}/token"
        return str(self.call("POST", path, {"spec": spec})["status"]["token"])

    def as_agent(self, node: str | None) -> AdminApi:
        return AdminApi(self.cp.url, self.cp.ca_file, self.token(node))

    def _agents_pod(self, node: str) -> dict[str, str]:
        containers = [{"name": "agent", "image": "example"}]
        spec = {"nodeName": node, "serviceAccountName": ACCOUNT, "containers": containers}
        pod = {"metadata": {"generateName": "bursar-node-"}, "spec": spec}
        made = self.call("POST", f"/api/v1/namespaces/{AGENTS}/pods", pod)["metadata"]
        return {"name": made["name"], "uid": made["uid"]}


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane) -> World:
    apply_files(control_plane, sorted(MANIFESTS.glob("*.yaml")))
    world = World(control_plane)
    world.make_node("own")
    world.make_node("other", cards=1)
    eventually(lambda: refusal(world.as_agent("own"), "other", {"metadata": {"labels": {"a": "b"}}}))
    return world


def refusal(api: AdminApi, node: str, patch: dict[str, Any], sub: str = "/status") -> str:
    """Why the API server refuses a merge patch of a node; empty where it does not."""
    try:
        api.call("PATCH", f"/api/v1/nodes/{node}{sub}", patch, MERGE)
    except ApiError as error:
        if error.status not in (400, 403, 422):
            raise
        return str(error)
    return ""


MAY = {
    "metadata": {"annotations": {"bursar.dev/inventory": "{}", "bursar.dev/holders": "{}"}},
    "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
}


def test_an_agent_writes_annotations_and_capacity_of_its_own_node_in_one_write(world: World) -> None:
    assert refusal(world.as_agent("own"), "own", MAY) == ""

    written = world.node("own")
    assert written["metadata"]["annotations"]["bursar.dev/inventory"] == "{}"
    assert CAPACITY.items() <= written["status"]["capacity"].items()
    assert CAPACITY.items() <= written["status"]["allocatable"].items()
    gone = dict.fromkeys(CAPACITY)
    assert refusal(world.as_agent("own"), "own", {"status": {"capacity": gone, "allocatable": gone}}) == ""


def test_an_agent_may_not_write_another_node_nor_any_with_a_token_of_no_pod(world: World) -> None:
    assert "the node that its own pod runs on" in refusal(world.as_agent("own"), "other", MAY)
    assert "the node that its own pod runs on" in refusal(world.as_agent(None), "own", MAY)


def test_the_node_in_the_token_counts_whatever_the_body_says(world: World) -> None:
    forged = {**MAY, "metadata": {**MAY["metadata"], "name": "own"}}

    assert refusal(world.as_agent("own"), "other", forged)


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"bursar.node-restriction.kubernetes.io/gpu-node": "true"}}},
        {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
        {"metadata": {"annotations": {"example.com/mine": "1"}}},
        {"metadata": {"annotations": {"local.bursar.dev/node": None}}},
        {"metadata": {"annotations": {"bursar.dev/cordoned-cards": "GPU-a"}}},
        {"metadata": {"finalizers": ["example.com/mine"]}},
        {"status": {"capacity": {"cpu": "1"}}},
        {"status": {"capacity": {"nvidia.com/gpu": "8"}}},
        {"status": {"capacity": {"pods": None}}},
        {"status": {"allocatable": {"memory": "1Gi"}}},
        {"status": {"allocatable": {"bursar.dev/gpu-placement": "1"}}},
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x", "message": "y"}]}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}},
        {"status": {"nodeInfo": {"bootID": "forged"}}},
        {"status": {"phase": "Terminated"}},
        {"status": {"images": [{"names": ["example"]}]}},
    ],
    ids=json.dumps,
)
def test_an_agent_may_write_nothing_else_of_its_own_node(world: World, patch: dict[str, Any]) -> None:
    before = world.node("own")
    mixed = {
        "metadata": {**MAY["metadata"], **patch.get("metadata", {})},
        "status": {**MAY["status"], **patch.get("status", {})},
    }

    assert refusal(world.as_agent("own"), "own", patch)
    assert refusal(world.as_agent("own"), "own", mixed)
    now = world.node("own")
    assert (now["metadata"].get("labels"), now["status"]["capacity"]) == (
        before["metadata"].get("labels"),
        before["status"]["capacity"],
    )


def test_an_agent_lists_what_drivers_publish_of_its_own_node(world: World) -> None:
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    for node in ("own", "other"):
        device = {"name": "gpu-0", "attributes": {"uuid": {"string": f"GPU-of-{node}"}}}
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": [device]}
        world.call("POST", slices, {"metadata": {"name": node}, "spec": spec})

    found = cards_of(world.as_agent("own").call("GET", slices_path("own")))
    assert found == {ClaimedDevice("gpu.nvidia.com", "own", "gpu-0"): frozenset({"GPU-of-own"})}
    with pytest.raises(ApiError) as refused:
        world.as_agent("own").call("DELETE", f"{slices}/own")
    assert refused.value.status == 403


def test_an_agent_may_not_touch_the_nodes_spec_nor_make_or_delete_nodes(world: World) -> None:
    agent = world.as_agent("own")

    assert refusal(agent, "own", {"spec": {"unschedulable": True}}, sub="")
    for method, path, body in (
        ("POST", "/api/v1/nodes", {"metadata": {"name": "own2"}}),
        ("DELETE", "/api/v1/nodes/own", None),
    ):
        with pytest.raises(ApiError) as refused:
            agent.call(method, path, body)
        assert refused.value.status == 403


def test_the_policy_holds_also_for_an_agent_that_was_given_more_rights_than_ours(world: World) -> None:
    binding = {
        "metadata": {"name": "too-much"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": AGENTS}],
    }
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    world.call("POST", bindings, binding)
    agent = world.as_agent("own")
    try:
        eventually(lambda: "spec: a node" in refusal(agent, "own", {"spec": {"unschedulable": True}}, ""))
        assert "the node that its own pod runs on" in refusal(agent, "other", {"spec": {}}, "")
        for method, path, body in (
            ("POST", "/api/v1/nodes", {"metadata": {"name": "own2"}}),
            ("DELETE", "/api/v1/nodes/own", None),
        ):
            with pytest.raises(ApiError, match="creates and deletes no nodes"):
                agent.call(method, path, body)
    finally:
        world.call("DELETE", f"{bindings}/too-much")


def test_no_node_can_call_an_agent_to_itself(world: World) -> None:
    """The label that the DaemonSet selects is one that the API server lets no kubelet set."""
    (label,) = the("DaemonSet", "bursar-node")["spec"]["template"]["spec"]["nodeSelector"]
    kubelet = ("--as=system:node:own", "--as-group=system:nodes", "--as-group=system:authenticated")

    def labelled(name: str) -> str:
        done = world.cp.kubectl("label", "node", "own", f"{name}=true", *kubelet)
        return "" if done.returncode == 0 else done.stderr

    assert f"is not allowed to modify labels: {label}" in labelled(label)
    assert labelled("bursar.dev/any-other") == ""


TAINTS = [{"key": "startup-taint.cluster-autoscaler.kubernetes.io/bursar", "effect": "NoSchedule"}]
OTHERS = [{"key": "example.com/a", "effect": "NoSchedule", "value": "x"}, {"key": "b", "effect": "NoExecute"}]


def tainted(world: World, name: str) -> None:
    """A node without cards that has the startup taint between two others."""
    world.make_node(name)
    taints = [OTHERS[0], *TAINTS, OTHERS[1]]
    world.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints}}, MERGE)


def is_refused(api: AdminApi, spec: dict[str, Any]) -> None:
    """Waits until RBAC has let the agent to its policy, which refuses the change."""
    eventually(lambda: "spec: a node's agent removes" in refusal(api, "new", {"spec": spec}, ""))


def keys(world: World, name: str) -> list[str]:
    """The keys of a node's taints but for those of the node's controller."""
    taints = world.node(name)["spec"].get("taints", [])
    return [each["key"] for each in taints if not each["key"].startswith("node.kubernetes.io/")]


def test_the_startup_taint_goes_when_the_inventory_stands_and_no_other_taint_does(
    world: World, tmp_path: Path
) -> None:
    tainted(world, "new")
    kubectl(world.cp, "apply", "--server-side", "-f", str(SAMPLES / "startup-taint.yaml"))
    api = world.as_agent("new")
    more = {"key": "mine", "effect": "NoSchedule"}
    for spec in (
        {"taints": [OTHERS[0]]},
        {"taints": [*OTHERS, more]},
        {"taints": [*OTHERS, *TAINTS, more]},
        {"taints": OTHERS, "unschedulable": True},
    ):
        is_refused(api, spec)
    assert keys(world, "new") == ["example.com/a", TAINTS[0]["key"], "b"]

    with running(world, tmp_path, "new", startup_taint="on") as agent:
        eventually(lambda: keys(world, "new") == ["example.com/a", "b"])
        assert agent.is_whole()
    kubectl(world.cp, "delete", "-f", str(SAMPLES / "startup-taint.yaml"))


def test_others_write_nodes_as_they_like(world: World) -> None:
    world.call("PATCH", "/api/v1/nodes/other", {"metadata": {"labels": {"example.com/a": "b"}}}, MERGE)

    assert world.node("other")["metadata"]["labels"]["example.com/a"] == "b"


class Agent:
    """``python -m sidecar.node`` for one node, its files in the folder ``files``."""

    def __init__(self, world: World, folder: Path, node: str, cards: str, **more: str) -> None:
        self.world, self.name = world, node
        environ = fake_nvml(folder, cards)
        self.description = Path(environ["BURSAR_FAKE_NVML"])
        self.port = free_port()
        self.files = folder / "mounted"
        self.files.mkdir()
        (self.files / "token").write_text(world.token(node))
        (self.files / "ca.crt").write_bytes(Path(world.cp.ca_file).read_bytes())
        kept = {name: text for name, text in os.environ.items() if name.startswith("COVERAGE_")}
        self.log = folder / "log"
        (folder / "cgroup").mkdir()
        flags = {
            "node-name": node,
            "api-url": world.cp.url,
            "listen": f"0.0.0.0:{self.port}",
            "look-every": "1s",
            "cgroups": folder / "cgroup",
            **{name.replace("_", "-"): text for name, text in more.items()},
        }
        named = [f"--{name}={text}" for name, text in flags.items()]
        self.command = [sys.executable, "-c", AGENT, str(self.files), *named]
        self.environ = {"PATH": os.environ.get("PATH", os.defpath), **kept, **environ}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, cwd=ROOT, env=self.environ, stderr=log)

    def kill(self) -> None:
        """Ends it. What it said is shown where its test fails."""
        if self.process:
            self.process.kill()
            self.process.wait()
        print(self.log.read_text())

    def stop(self) -> int:
        assert self.process
        self.process.terminate()
        code, self.process = self.process.wait(timeout=LONGEST_S), None
        return code

    def cards(self, text: str) -> None:
        describe(self.description, text)

    def healthy(self) -> dict[str, bool]:
        """By card, as the annotation tells it."""
        annotations = self.world.node(self.name)["metadata"]["annotations"]
        text = annotations.get("bursar.dev/inventory", '{"version":1,"cards":[]}')
        return {card.uuid: card.healthy for card in decode_inventory(text)}

    def capacity(self) -> dict[str, str]:
        """Ours, where allocatable is the same."""
        status = self.world.node(self.name)["status"]
        ours = {name: text for name, text in status["capacity"].items() if name in CAPACITY}
        return ours if all(status["allocatable"].get(name) == text for name, text in ours.items()) else {}

    def metrics(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=LONGEST_S) as answer:
            return str(answer.read().decode())

    def figure(self, metric: str) -> int:
        """A metric's number; -1 where it is not there."""
        found = [line for line in self.metrics().splitlines() if line.startswith(f"{metric} ")]
        return int(found[0].rpartition(" ")[2]) if found else -1

    def is_ready(self) -> bool:
        with contextlib.suppress(urllib.error.HTTPError):  # 503: not yet
            return self.metrics("/readyz") == "ok\n"
        return False

    def is_whole(self) -> bool:
        return self.healthy() == {"GPU-a": True, "GPU-b": True} and self.capacity() == CAPACITY


@contextmanager
def running(world: World, folder: Path, node: str, cards: str = TWO, **more: str) -> Iterator[Agent]:
    with until_killed(Agent(world, folder, node, cards, **more)) as agent:
        yield agent


@contextmanager
def until_killed(agent: Agent) -> Iterator[Agent]:
    agent.start()
    try:
        yield agent
    finally:
        agent.kill()


def test_cards_appear_fail_and_recover_and_capacity_stays_all_the_while(world: World, tmp_path: Path) -> None:
    world.make_node("n1")
    with running(world, tmp_path, "n1") as agent:
        eventually(agent.is_whole)

        agent.cards(LOST)
        eventually(lambda: agent.healthy() == {"GPU-a": False, "GPU-b": True})
        assert agent.capacity() == CAPACITY
        agent.cards(TWO)
        eventually(agent.is_whole)  # NVML is opened anew every 20 s
        assert agent.stop() == 0

    lines = [line.split()[0] for line in events(agent.log.read_text())]
    assert lines.count("event=card-unhealthy") == lines.count("event=card-healthy-again") == 1


def test_an_xid_reaches_the_inventory_and_the_pods_on_the_card(world: World, tmp_path: Path) -> None:
    world.make_node("n2")
    pods = f"/api/v1/namespaces/{AGENTS}/pods"
    devices = {"main": [{"uuid": "GPU-b", "index": 1, "share_milli": 500, "memory_mib": 1}]}
    annotations = {"bursar.dev/devices": json.dumps({"version": 1, "containers": devices})}
    spec = {"nodeName": "n2", "containers": [{"name": "main", "image": "example"}]}
    world.call("POST", pods, {"metadata": {"name": "user", "annotations": annotations}, "spec": spec})
    with running(world, tmp_path, "n2") as agent:
        eventually(agent.is_whole)
        agent.cards(TWO + "event 1 GPU-b 8 79\n")
        eventually(lambda: agent.healthy() == {"GPU-a": True, "GPU-b": False})

        def told() -> list[str]:
            listed = world.call("GET", f"/apis/events.k8s.io/v1/namespaces/{AGENTS}/events")["items"]
            return [each["note"] for each in listed if each["regarding"]["name"] == "user"]

        eventually(told)
        assert told() == ["card GPU-b of this pod is not healthy: XID 79"]
        assert 'bursar_node_card_healthy{uuid="GPU-b"' in agent.metrics()
        assert "bursar_node_cards_healthy 1\n" in agent.metrics()


def test_what_is_removed_comes_back_and_so_does_a_node_that_was_made_anew(
    world: World, tmp_path: Path
) -> None:
    world.make_node("n3")
    with running(world, tmp_path, "n3") as agent:
        eventually(agent.is_whole)

        gone = dict.fromkeys(CAPACITY)
        world.status("n3", {"status": {"capacity": gone, "allocatable": gone}})
        eventually(agent.is_whole)
        world.status("n3", {"metadata": {"annotations": {"bursar.dev/inventory": None}}})
        eventually(agent.is_whole)
        zeroes = dict.fromkeys(CAPACITY, "0")  # as a kubelet does that starts without its checkpoint
        world.status("n3", {"status": {"capacity": zeroes, "allocatable": zeroes}})
        eventually(agent.is_whole)

        world.call("DELETE", "/api/v1/nodes/n3")
        world.make_node("n3")
        eventually(agent.is_whole)


def test_an_agent_that_was_killed_sends_what_the_timekeeper_had_not_acknowledged(
    world: World, tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority
) -> None:
    world.make_node("n9")
    timekeeper.answer = lambda _: (200, {"version": 1, "interval_ms": 1_000})
    agent = Agent(world, tmp_path, "n9", TWO, timekeeper_url=timekeeper.url)
    (agent.files / "for-timekeeper").write_text("first-token")
    (agent.files / "timekeeper.crt").write_bytes(authority.pem)
    with until_killed(agent):
        # With the second report the agent has read the answer to the first, and so the interval.
        timekeeper.wait(lambda: len(timekeeper.arrivals) > 1)
        timekeeper.stop()
        eventually(lambda: agent.figure("bursar_node_intervals_waiting") >= 4)
        # what was received and not acknowledged is reported, and waits too
        expected = len(reported(timekeeper)) - 1 + agent.figure("bursar_node_intervals_waiting")
        assert agent.process
        agent.process.kill()
        agent.process.wait()
        describe(agent.description, TWO.replace("GPU-a 37", "GPU-a 38"))  # what the next one measures
        timekeeper.start()
        agent.start()
        timekeeper.wait(lambda: len({each.key[0] for each in timekeeper.arrivals}) == 2)
        assert agent.stop() == 0

    used = [use["cards"][0]["utilisation"] for use in reported(timekeeper)]
    assert used == sorted(used)
    assert used.count(37) >= expected


def reported(timekeeper: Timekeeper) -> list[Any]:
    """Each interval that was reported, in the order of arrival, a repeated post counted once."""
    first: dict[tuple[str, int], Arrival] = {}
    for each in timekeeper.arrivals:
        first.setdefault(each.key, each)
        ages = [use["age_ms"] for use in each.document["uses"]]
        assert ages == sorted(ages, reverse=True)
    return [use for each in first.values() for use in each.document["uses"]]


def test_a_node_at_rest_is_not_written(world: World, tmp_path: Path) -> None:
    world.make_node("n4")
    with running(world, tmp_path, "n4") as agent:
        eventually(agent.is_whole)
        eventually(lambda: "bursar.dev/holders" in world.node("n4")["metadata"]["annotations"])
        eventually(agent.is_ready)
        looks, written = agent.figure("bursar_node_looks_total"), agent.figure(WRITTEN)
        eventually(lambda: agent.figure("bursar_node_looks_total") >= looks + 3)

        assert agent.figure(WRITTEN) == written


def test_without_nvml_the_agent_goes_on_and_leaves_what_stands(world: World, tmp_path: Path) -> None:
    world.make_node("n5")
    with running(world, tmp_path, "n5") as agent:
        eventually(agent.is_whole)
        assert agent.stop() == 0

        agent.cards(TWO + "fail nvmlInitWithFlags DRIVER_NOT_LOADED\n")
        agent.start()
        eventually(lambda: set(agent.healthy().values()) == {False})
        assert agent.capacity() == CAPACITY
        assert "bursar_node_nvml_up 0\n" in agent.metrics()
        agent.cards(TWO)
        eventually(agent.is_whole)

    assert agent.log.read_text().count("event=reader-silent") == 1


def test_a_node_of_another_plugin_gets_its_inventory_and_no_capacity_of_ours(
    world: World, tmp_path: Path
) -> None:
    world.make_node("n6")
    amount = {"nvidia.com/gpu": "2"}
    world.status("n6", {"status": {"capacity": amount, "allocatable": amount}})
    with running(world, tmp_path, "n6") as agent:
        eventually(lambda: len(agent.healthy()) == 2)

        assert agent.capacity() == {}
        assert world.node("n6")["status"]["capacity"]["nvidia.com/gpu"] == "2"


def test_the_agent_ends_at_once_also_while_nvml_hangs(world: World, tmp_path: Path) -> None:
    world.make_node("n7")
    with running(world, tmp_path, "n7") as agent:
        eventually(agent.is_whole)
        agent.cards(TWO + "hang nvmlDeviceGetMemoryInfo_v2\n")
        eventually(lambda: set(agent.healthy().values()) == {False})
        assert agent.stop() == 0


def test_as_installed_it_writes_its_inventory_and_nothing_else(world: World, tmp_path: Path) -> None:
    world.make_node("installed")
    agent = Agent(world, tmp_path, "installed", TWO)
    with installed(shape_of("agent"), agent.files, tmp_path) as here:
        agent.command = [*here.prefix, *agent.command]
        with until_killed(agent):
            eventually(agent.is_whole)
            assert agent.process is not None
            here.check(agent.process.pid)
