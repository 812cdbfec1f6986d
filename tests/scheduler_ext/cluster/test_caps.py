"""Caps beside a real kube-scheduler and API server: a burst of pods on several nodes never holds more than
the cap, at no moment and across a kill of the extender, and fills it."""

from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from tests.scheduler_ext.clusters import PODS, World, scheduling
from tests.scheduler_ext.history import watched
from tests.scheduler_ext.processes import Process
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.waiting import eventually

HALF = {"bursar.dev/gpu-percent": "50"}
FULL = "above the cap of namespace default (maxGPUs: {})"


@pytest.fixture(scope="module")
def extender(
    plane: ControlPlane, timekeeper: SimulatedTimekeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """The extender, which asks that timekeeper, and a kube-scheduler that asks it."""
    with scheduling(plane, tmp_path_factory.mktemp("extender"), *timekeeper.flags) as process:
        yield process


def cap(timekeeper: SimulatedTimekeeper, milli: int) -> None:
    """The cap of the namespace ``default`` from now on; the extender has read it."""
    polls = len(timekeeper.answered)
    timekeeper.document = standings(revision=f"r{polls}", default=entry(caps={"total": milli, "pod": None}))
    eventually(lambda: len(timekeeper.answered) >= polls + 2)


def test_a_burst_fills_a_cap_and_never_exceeds_it_and_each_release_wakes_the_next(
    world: World, timekeeper: SimulatedTimekeeper
) -> None:
    cap(timekeeper, 2_000)
    for name in ("a", "b", "c"):
        world.node(f"node-{name}", cards=4)
    nodes = world.plane.api.call("GET", "/api/v1/nodes")["items"]
    names = [f"p{at:02}" for at in range(16)]
    with watched(world.plane.api, nodes, PODS) as history:
        for name in names:
            world.pod(name, HALF)

        def waiting() -> list[str]:
            return [name for name in names if name not in gone and not world.node_info_of(name)]

        def end_one() -> None:
            name = world.bound()[0]["metadata"]["name"]
            gone.append(name)
            world.delete(name)
            eventually(lambda: name not in {each["metadata"]["name"] for each in world.pods()})

        gone: list[str] = []
        eventually(lambda: len(world.bound()) == 4)
        eventually(lambda: all(FULL.format(2) in world.refusals(name) for name in waiting()))

        for _ in range(2):
            end_one()
            eventually(lambda: len(world.bound()) == 4)

        world.extender.kill()
        end_one()
        world.extender.start_ready()
        eventually(lambda: len(world.bound()) == 4)
        assert (history.most_milli, history.wrong) == (2_000, [])

        cap(timekeeper, 3_500)
        eventually(lambda: len(world.bound()) == 7)
        eventually(lambda: all(FULL.format("3.5") in world.refusals(name) for name in waiting()))
        assert (history.most_milli, history.wrong) == (3_500, [])


def test_a_pod_that_another_scheduler_placed_counts(world: World, timekeeper: SimulatedTimekeeper) -> None:
    cap(timekeeper, 1_000)
    world.node("node-a", cards=2)
    world.pod("theirs", HALF, schedulerName="other")
    binding = {"metadata": {"name": "theirs"}, "target": {"kind": "Node", "name": "node-a"}}
    world.plane.api.call("POST", f"{PODS}/theirs/binding", binding)
    eventually(lambda: world.extender.known("node-a"))
    world.node("node-b", cards=2)

    world.pod("fits", HALF)
    eventually(lambda: world.node_info_of("fits"))
    world.pod("waits", HALF)

    eventually(lambda: FULL.format(1) in world.refusals("waits"))
    assert world.node_info_of("fits") == "node-b"  # a pod without named cards closes its node
