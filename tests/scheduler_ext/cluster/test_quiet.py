"""Waiting pods beside a real kube-scheduler: they ask seldom, and when a card frees it goes to the right
one."""

from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.scheduler import MAX_BACKOFF_S
from tests.scheduler_ext.clusters import PROFILE, World, placed, scheduling
from tests.scheduler_ext.processes import Process
from tests.support.control_plane import create_namespace
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.worlds import Json

DEBTORS = "/api/v1/namespaces/debtor/pods"
SIXTY = {"bursar.dev/gpu-percent": "60"}


@pytest.fixture(scope="module")
def extender(plane: ControlPlane, tls: Tls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """An extender that a timekeeper tells of a namespace over budget, and a kube-scheduler that asks it."""
    document = standings(default=entry("IN_BUDGET"), debtor=entry("OVER_BUDGET"))
    create_namespace(plane, "debtor")
    for name, value, policy in (("high", 1000, "Never"), ("low", -5, "Never"), ("urgent", 1000, None)):
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
        plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    folder = tmp_path_factory.mktemp("extender")
    with (
        SimulatedTimekeeper(tls, document) as timekeeper,
        scheduling(plane, folder, *timekeeper.flags) as process,
    ):
        yield process


@pytest.fixture(autouse=True)
def no_debtors(world: World) -> Iterator[None]:
    """The namespace over budget is empty again after each test."""
    yield
    world.plane.api.call("DELETE", DEBTORS)
    eventually(lambda: not world.plane.api.call("GET", DEBTORS)["items"])


def indebted(world: World, name: str) -> None:
    """A pod of the namespace over budget, of a class that it was given before."""
    container = {"name": "main", "image": "x", "resources": {"limits": SIXTY}}
    spec = {"schedulerName": PROFILE, "priorityClassName": "high", "containers": [container]}
    world.plane.api.call("POST", DEBTORS, {"metadata": {"name": name}, "spec": spec})


def refused(world: World, *full_names: str) -> None:
    """Wait until kube-scheduler has written of each that it cannot be placed."""
    for each in full_names:
        path = "/api/v1/namespaces/{}/pods/{}".format(*each.split("/"))
        eventually(lambda path=path: world.plane.api.call("GET", path)["status"].get("conditions"))  # type: ignore[misc]


def was_woken(pod: Json) -> bool:
    """Whether the extender has woken the pod."""
    return any(each["type"] == "bursar.dev/CardFreed" for each in pod["status"].get("conditions", []))


def bound_names(world: World) -> list[str]:
    """The names of the pods that are bound."""
    return [pod["metadata"]["name"] for pod in world.bound()]


def is_there(world: World, name: str) -> bool:
    """Whether the pod has an object."""
    return name in [pod["metadata"]["name"] for pod in world.pods()]


def test_one_that_fits_nowhere_beside_lower_priority_pods_is_left_alone(world: World) -> None:
    """The extender polls each second, and kube-scheduler backs off for so many seconds at most: a pod that it
    does not try again within as many polls is tried only when something happens, or after five minutes."""
    for name in ("n1", "n2"):
        world.node(name, cards=2)
        for at in range(2):
            here = {"nodeSelector": {"kubernetes.io/hostname": name}}
            world.pod(f"{name}-stays-{at}", SIXTY, priorityClassName="high", **here)
            placed(world, f"{name}-stays-{at}")
        world.pod(f"{name}-low", {"bursar.dev/gpu-percent": "10"}, priorityClassName="low", **here)
        placed(world, f"{name}-low")

    world.pod("unplaceable", {"bursar.dev/gpu-percent": "50"}, priorityClassName="urgent")
    eventually(lambda: "no card has 50 percent free" in world.refusals("unplaceable"))
    tried_at: dict[float, float] = {}  # how often it was filtered -> the poll at which that was first seen

    def is_left_alone() -> bool:
        poll = world.extender.metric('bursar_extender_standings_polls_total{outcome="heard"}')
        return poll > tried_at.setdefault(world.filters(), poll) + MAX_BACKOFF_S + 1

    eventually(is_left_alone)
    assert not was_woken(world.get("unplaceable"))
    assert len(world.bound()) == 6


def test_a_card_that_frees_without_an_event_goes_to_the_one_whose_turn_it_is(
    world: World,
) -> None:
    """Of three, in turn: kube-scheduler hears nothing when the grace period of a force-deleted pod ends."""
    world.node("n", cards=1)
    grace = {"terminationGracePeriodSeconds": 1}
    world.pod("p0", SIXTY, **grace)
    placed(world, "p0")
    indebted(world, "over")
    world.pod("low", SIXTY, priorityClassName="low", **grace)
    for at in (1, 2, 3):
        world.pod(f"p{at}", SIXTY, **grace)
        refused(world, f"default/p{at}")
    refused(world, "debtor/over", "default/low")
    holder = "p0"
    for left in (3, 2, 1):
        world.delete(holder, grace_s=0)
        eventually(lambda: world.bound())
        (pod,) = world.bound()
        holder = pod["metadata"]["name"]
        assert was_woken(pod)
        alike = [was_woken(world.get(name)) for name in ("p1", "p2", "p3") if is_there(world, name)]
        assert alike.count(False) == left - 1, "one and no other is woken"

    waiting = [world.plane.api.call("GET", f"{DEBTORS}/over"), world.get("low")]
    assert [pod["spec"].get("nodeName") for pod in waiting] == [None, None]
    assert [was_woken(pod) for pod in waiting] == [False, False]


def test_a_card_that_kube_scheduler_sees_free_too_goes_to_the_one_whose_turn_it_is(world: World) -> None:
    """It tries the pod of the highest priority first, which is that of the namespace over budget."""
    world.node("n", cards=1)
    for name in ("holder", "p1", "p2"):
        world.pod(name, SIXTY)
        eventually(lambda name=name: world.node_info_of(name) or world.refusals(name))  # type: ignore[misc]
    indebted(world, "over-too")
    refused(world, "debtor/over-too")
    holder, waiting = "holder", {"p1", "p2"}
    for _ in range(2):
        world.delete(holder)
        eventually(lambda: len(waiting & set(bound_names(world))) == 1)
        (holder,) = waiting & set(bound_names(world))
        waiting.remove(holder)

    over = f"{DEBTORS}/over-too"
    assert "nodeName" not in world.plane.api.call("GET", over)["spec"]
    world.delete(holder)
    eventually(lambda: world.plane.api.call("GET", over)["spec"].get("nodeName"))
