"""The extender beside a real kube-scheduler and API server, with the rights that it has in a cluster."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.nodes import kwok_node, tencent_capacity
from tests.scheduler_ext.process import ROOT, Process

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

SCHEDULER = "gpu-scheduler"
PROFILE = "bursar-scheduler"


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our roles, and an account for the extender."""
    manifests = ROOT / "deploy" / "manifests"
    for each in (
        ("apply", "-f", str(manifests / "00-namespace.yaml"), "-f", str(manifests / "rbac.yaml")),
        ("create", "serviceaccount", "extender", "-n", "bursar-system"),
        (
            "create",
            "clusterrolebinding",
            "x",
            "--clusterrole=bursar-extender",
            "--serviceaccount=bursar-system:extender",
        ),
    ):
        done = control_plane.kubectl(*each)
        assert done.returncode == 0, done.stderr
    return control_plane


@pytest.fixture(scope="module")
def extender(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The extender, and a kube-scheduler that asks it."""
    token = plane.kubectl(
        "create", "token", "extender", "-n", "bursar-system", "--duration=1h"
    ).stdout.strip()
    process = Process(
        tmp_path_factory.mktemp("extender"), f"--kubeconfig={plane.kubeconfig(token, 'extender')}"
    )
    process.start()
    process.ready()
    plane.start_scheduler(SCHEDULER, profiles=(PROFILE,), extender_url=process.url)
    yield process
    process.kill()


@pytest.fixture
def world(plane: ControlPlane, extender: Process) -> Iterator["World"]:
    """An empty cluster before and after."""
    world = World(plane, extender)
    yield world
    world.clear()


class World:
    """What the tests do to the cluster, and see of it."""

    def __init__(self, plane: ControlPlane, extender: Process) -> None:
        self.plane, self.extender = plane, extender

    def node(self, name: str, cards: int, memory_mib: int = 16_000, **fields: Any) -> None:
        """A node that the extender knows of."""
        self.plane.api.call(
            "POST", "/api/v1/nodes", kwok_node(name, cards=cards, memory_mib=memory_mib, **fields)
        )
        eventually(lambda: name in [node["name"] for node in self.extender.cluster()["nodes"]])

    def pod(self, name: str, limits: dict[str, str], **fields: Any) -> None:
        """A pod of our profile with one GPU container."""
        annotations = fields.pop("annotations", {})
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "schedulerName": PROFILE,
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
                **fields,
            },
        }
        self.plane.api.call("POST", "/api/v1/namespaces/default/pods", body)

    def get(self, name: str) -> Json:
        """The pod as it is."""
        body: Json = self.plane.api.call("GET", f"/api/v1/namespaces/default/pods/{name}")
        return body

    def pods(self) -> list[Json]:
        """Every pod."""
        items: list[Json] = self.plane.api.call("GET", "/api/v1/namespaces/default/pods")["items"]
        return items

    def delete(self, name: str, grace_s: int | None = None) -> None:
        """Ask for the pod's end."""
        query = "" if grace_s is None else f"?gracePeriodSeconds={grace_s}"
        self.plane.api.call("DELETE", f"/api/v1/namespaces/default/pods/{name}{query}")

    def node_of(self, name: str) -> str:
        """Where the pod is bound, "" where it is not."""
        where: str = self.get(name)["spec"].get("nodeName", "")
        return where

    def cards_of(self, name: str) -> list[str]:
        """The UUIDs that the pod's annotation gives its container."""
        devices = json.loads(self.get(name)["metadata"]["annotations"]["bursar.dev/devices"])
        return [each["uuid"] for each in devices["containers"]["main"]]

    def bound(self) -> list[Json]:
        """The pods that are bound."""
        return [pod for pod in self.pods() if pod["spec"].get("nodeName")]

    def refusals(self, name: str) -> str:
        """What kube-scheduler says of a pod that it cannot place."""
        conditions = self.get(name)["status"].get("conditions", [])
        return "".join(each.get("message", "") for each in conditions if each["type"] == "PodScheduled")

    def filters(self) -> int:
        """How often the extender was asked to filter."""
        return self.extender.said().count("event=filter")

    def clear(self) -> None:
        """Remove pods and nodes, and wait until the extender knows."""
        self.plane.api.call("DELETE", "/api/v1/namespaces/default/pods")
        eventually(lambda: not self.pods())
        self.plane.api.call("DELETE", "/api/v1/nodes")
        eventually(lambda: not self.extender.cluster()["nodes"])


def placed(world: "World", *names: str) -> None:
    """Wait until each of these is bound."""
    eventually(lambda: all(world.node_of(name) for name in names))


def decided(world: "World", *names: str) -> None:
    """Wait until each of these is bound or has been refused."""
    eventually(lambda: all(world.node_of(name) or world.refusals(name) for name in names))


def eventually(true: Callable[[], Any], within_s: float = 20.0) -> float:
    """Wait until it holds; how long that took, in seconds."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < within_s, "it did not come true in time"
        time.sleep(0.005)
    return time.monotonic() - begun


def used(pods: list[Json]) -> dict[str, tuple[int, int]]:
    """Thousandths and MiB taken of each card, from the objects alone, by nobody's code but this."""
    total: dict[str, tuple[int, int]] = {}
    for pod in pods:
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            devices = json.loads(pod["metadata"]["annotations"]["bursar.dev/devices"])
            for slices in devices["containers"].values():
                for each in slices:
                    share, memory = total.get(each["uuid"], (0, 0))
                    total[each["uuid"]] = share + each["share_milli"], memory + each["memory_mib"]
    return total


HALF = {"bursar.dev/gpu-percent": "50"}


def test_a_half_card_pod_is_bound_with_its_annotations(world: World) -> None:
    world.node("n", cards=2)
    world.pod("p", HALF, annotations={"bursar.dev/devices": "forged"})

    eventually(lambda: world.node_of("p") == "n")

    annotations = world.get("p")["metadata"]["annotations"]
    (card,) = world.cards_of("p")
    assert annotations["visible-devices.bursar.dev/main"] == card
    assert annotations["visible-devices.bursar.dev/bursar-sidecar"] == card
    (node,) = world.extender.cluster()["nodes"]
    assert [each["pods"][0]["name"] for each in node["cards"] if each["uuid"] == card] == ["p"]


def test_two_half_card_pods_share_one_card_and_the_third_gets_the_other(world: World) -> None:
    world.node("n", cards=2)
    for name in ("a", "b", "c"):
        world.pod(name, HALF)
        placed(world, name)

    assert world.cards_of("a") == world.cards_of("b") != world.cards_of("c")


def test_binpack_fills_the_node_that_is_in_use(world: World) -> None:
    for name in ("n1", "n2", "n3"):
        world.node(name, cards=2)
    world.pod("first", {"bursar.dev/gpu-percent": "10"})
    eventually(lambda: world.node_of("first"))

    for at in range(4):
        world.pod(f"p{at}", {"bursar.dev/gpu-percent": "40"})
        placed(world, f"p{at}")

    assert {world.node_of(f"p{at}") for at in range(4)} == {world.node_of("first")}


def test_a_tencent_pod_is_placed_on_a_tencent_node(world: World) -> None:
    world.node("ours", cards=2, memory_mib=8192)
    world.node("theirs", cards=2, memory_mib=8192, capacity=tencent_capacity(2, 8192))
    world.pod("p", {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "16"})

    eventually(lambda: world.node_of("p") == "theirs")

    assert world.get("p")["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"] == "0"


def test_the_third_pod_of_five_gigabytes_waits_and_is_bound_within_a_second_of_a_release(
    world: World,
) -> None:
    world.node("small", cards=2, memory_mib=8000, labels={"pool": "small"})
    world.node("other", cards=2, memory_mib=8000)
    for name in ("a", "b", "c"):
        world.pod(name, {"bursar.dev/gpu-memory": "5000"}, nodeSelector={"pool": "small"})
        decided(world, name)
    assert world.node_of("c") == ""
    assert "no card has 5000 MiB free" in world.refusals("c")
    events = world.plane.api.call("GET", "/api/v1/namespaces/default/events")["items"]
    assert any("no card has 5000 MiB free" in each["message"] for each in events)

    world.delete("a")
    eventually(lambda: gone(world, "a"))

    assert eventually(lambda: world.node_of("c")) < 1.0
    assert world.cards_of("c") != world.cards_of("b")


def gone(world: World, name: str) -> bool:
    """Whether the pod has no object any more."""
    try:
        world.get(name)
    except ApiError as error:
        return error.status == 404
    return False


def test_cards_that_a_force_deleted_pod_may_still_use_are_given_out_when_its_grace_period_is_over(
    world: World,
) -> None:
    """kube-scheduler sees the pod gone at once and nothing later: only being woken gets the next one on."""
    world.node("n", cards=1)
    world.pod("a", {"bursar.dev/gpu-percent": "80"}, terminationGracePeriodSeconds=2)
    eventually(lambda: world.node_of("a"))
    world.pod("low", {"bursar.dev/gpu-percent": "60"})
    eventually(lambda: world.refusals("low"))

    before = world.extender.said().count("event=woken")

    world.delete("a", grace_s=0)
    waited = eventually(lambda: world.node_of("low"))

    assert 1.5 < waited < 4.0
    assert world.extender.said().count("event=woken") == before + 1


def test_of_two_that_wait_the_one_of_higher_priority_goes_first(world: World) -> None:
    for name, value in (("high", 1000), ("low", -5)):
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"}
        world.plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    world.node("n", cards=2)
    for name in ("a", "b"):
        world.pod(name, {"bursar.dev/gpu-percent": "60"}, terminationGracePeriodSeconds=1)
        placed(world, name)
    for name in ("low", "high"):
        world.pod(name, {"bursar.dev/gpu-percent": "60"}, priorityClassName=name)
        decided(world, name)

    world.delete("a", grace_s=0)

    eventually(lambda: world.node_of("high"))
    assert world.node_of("low") == ""
    world.delete("b", grace_s=0)
    eventually(lambda: world.node_of("low"))


def test_where_totals_are_short_kube_schedulers_own_preemption_makes_room(world: World) -> None:
    body = {"metadata": {"name": "preempting"}, "value": 9000}
    world.plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    world.node("n", cards=2)
    for name in ("a", "b", "c", "d"):
        world.pod(name, HALF)
        placed(world, name)

    world.pod("e", HALF, priorityClassName="preempting")

    placed(world, "e")
    left = [pod["metadata"]["name"] for pod in world.bound() if pod["status"]["phase"] == "Running"]
    assert len(left) <= 4
    assert all(share <= 1000 for share, _ in used(world.pods()).values())


def test_of_thirty_two_half_cards_at_once_exactly_eight_fit_on_four_cards(world: World) -> None:
    world.node("n1", cards=2)
    world.node("n2", cards=2)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: world.pod(f"p{at}", HALF), range(32)))
    eventually(lambda: len(world.bound()) == 8)
    eventually(lambda: all(world.refusals(f"p{at}") or world.node_of(f"p{at}") for at in range(32)))

    assert len(world.bound()) == 8
    assert sorted(used(world.pods()).values()) == [(1000, 16_000)] * 4


def test_killed_and_started_again_in_a_burst_it_overcommits_nothing(world: World) -> None:
    world.node("n1", cards=16)
    world.node("n2", cards=16)

    unfinished = 0
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda at: world.pod(f"p{at}", {"bursar.dev/gpu-percent": "30"}), range(120))
        for _ in range(3):
            goal = min(len(world.bound()) + 2, 96)
            eventually(lambda goal=goal: len(world.bound()) >= goal)  # type: ignore[misc]
            world.extender.kill()
            unfinished += len(world.bound()) < 96
            world.extender.start()
            world.extender.ready()
        list(made)
    eventually(lambda: len(world.bound()) == 96, within_s=60)

    assert unfinished > 0, "no kill fell into the burst"
    assert sorted(share for share, _ in used(world.pods()).values()) == [900] * 32


def test_one_pod_that_fits_nowhere_asks_fewer_than_ten_times_in_twenty_seconds(world: World) -> None:
    world.node("n1", cards=2)
    world.node("n2", cards=2)
    for at in range(4):
        world.pod(f"p{at}", {"bursar.dev/gpu-percent": "60"})
        placed(world, f"p{at}")
    body = {"metadata": {"name": "urgent"}, "value": 5000}
    world.plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    before = world.filters()

    world.pod("unplaceable", HALF, priorityClassName="urgent")
    eventually(lambda: "no card has 50% free" in world.refusals("unplaceable"))
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 20 or world.filters() - before >= 10, within_s=30)

    assert world.filters() - before < 10
    assert len(world.bound()) == 4


def test_it_ends_in_order(plane: ControlPlane, tmp_path: Path) -> None:
    process = Process(tmp_path, f"--kubeconfig={plane.admin_kubeconfig}")
    process.start()
    process.ready()

    begun = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - begun < 5
    assert "Traceback" not in process.said()
