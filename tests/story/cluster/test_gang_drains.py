"""Drains from end to end: a real API server, kube-scheduler and controllers, kwok nodes, and every role of
Bursar. A gang of whole nodes starts although single pods keep coming, and they start although it waits."""

import signal
from collections.abc import Iterator

import pytest

from deploy.local.stack import Stack
from tests.story.cluster.test_gangs import Place, restart
from tests.support.waiting import eventually
from tests.worlds import Json


@pytest.fixture(scope="module")
def soon(stack: Stack) -> Iterator[Stack]:
    """Gangs get a drain after five seconds; it lasts three minutes."""
    restart(stack, "--gang-drain-after=5s", "--gang-drain-for=3m")
    yield stack
    restart(stack)


def single(place: Place, name: str, runs_s: int, declared_s: int = 0) -> None:
    """Creates a pod that needs a card of the place."""
    limits = {"bursar.dev/gpu-percent": "100"}
    spec: Json = {
        "containers": [{"name": "main", "image": "example/app:1", "resources": {"limits": limits}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"of": place.name},
    }
    if declared_s:
        spec["activeDeadlineSeconds"] = declared_s
    metadata = {"name": name, "annotations": {"local.bursar.dev/run-for": f"{runs_s}s"}}
    place.stack.cp.api.call("POST", place.path, {"metadata": metadata, "spec": spec})


def waiting_singles(place: Place) -> list[str]:
    return [
        each["metadata"]["name"]
        for each in place.pods()
        if each["metadata"]["name"].startswith("single") and not each["spec"].get("nodeName")
    ]


def reasons(place: Place, reader: str) -> str:
    """Why the pods of the place wait: kube-scheduler repeats the extender's reasons; and those of the map."""
    by_scheduler = [pod["status"].get("conditions") for pod in place.pods()]
    return str([by_scheduler, place.stack.get(f"/v1/waiting?namespace={place.name}", reader)])


def test_a_gang_of_two_whole_nodes_starts_although_single_pods_keep_coming(soon: Stack) -> None:
    place, numbers = Place(soon, "streamed", 2, 2), iter(range(1_000))

    def more() -> None:
        for _ in range(3 - len(waiting_singles(place))):
            single(place, f"single-{next(numbers)}", 4)

    def is_whole() -> bool:
        more()
        return {"a", "b"} <= {*place.bound()}

    for _ in range(3):
        more()
        eventually(lambda: len(waiting_singles(place)) < 3)
    place.create("a", "b", size=2, percent=200)

    soon.wait("both to be bound", is_whole)
    assert "kept for gang streamed/train at most until" in soon.log("extender")  # the single pods were told
    soon.wait("a single pod to go on waiting", lambda: waiting_singles(place) != [])


def test_a_pod_that_ends_in_time_passes_and_a_kill_leaves_no_card_empty(soon: Stack, reader: str) -> None:
    place = Place(soon, "passed", 2)
    single(place, "slow", 600, declared_s=120)
    soon.wait(*place.are_bound("slow"))
    soon.wait("it to run", lambda: place.running() == ["slow"])
    place.create("a", "b", size=2)
    soon.wait("a drain", lambda: "2 cards on 1 node are kept for it until about" in reasons(place, reader))

    single(place, "single", 600)
    soon.wait("it to be told", lambda: "kept for gang passed/train until about" in reasons(place, reader))
    single(place, "short", 2, declared_s=20)
    soon.wait("the short one to be bound", lambda: "short" in place.bound())
    assert "single" not in place.bound()
    path = f"{place.path}/short?gracePeriodSeconds=0"
    soon.cp.api.call("DELETE", path)

    soon.stop("extender", signal.SIGKILL)
    soon.start("extender")
    single(place, "single-new", 600)  # the other is tried again when kube-scheduler hears of an event
    soon.wait(
        "a single pod to be bound", lambda: not {"single", "single-new"}.isdisjoint(place.bound()), "extender"
    )
