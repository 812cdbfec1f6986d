"""Drains from end to end: a real API server, kube-scheduler and controllers, kwok nodes, and every role of
Bursar. A gang of whole nodes starts although single pods keep coming, and they start although it waits."""

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


def single(place: Place, name: str, runs_s: int) -> None:
    """Creates a pod that needs a card of the place."""
    limits = {"bursar.dev/gpu-percent": "100"}
    spec: Json = {
        "containers": [{"name": "main", "image": "example/app:1", "resources": {"limits": limits}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"of": place.name},
    }
    metadata = {"name": name, "annotations": {"local.bursar.dev/run-for": f"{runs_s}s"}}
    place.stack.cp.api.call("POST", place.path, {"metadata": metadata, "spec": spec})


def waiting_singles(place: Place) -> list[str]:
    return [
        each["metadata"]["name"]
        for each in place.pods()
        if each["metadata"]["name"].startswith("single") and not each["spec"].get("nodeName")
    ]


def is_done(pod: Json) -> bool:
    return bool(pod["status"].get("phase") == "Succeeded")


def test_a_gang_of_two_whole_nodes_starts_although_single_pods_keep_coming(soon: Stack) -> None:
    place, numbers = Place(soon, "streamed", 2, 2), iter(range(1_000))

    def more() -> None:
        for _ in range(3 - len(waiting_singles(place))):
            number = next(numbers)
            # The first four hold all cards when the drain begins, and leave one after the other.
            single(place, f"single-{number}", 12 + 3 * number if number < 4 else 4)

    def is_whole() -> bool:
        more()
        return {"a", "b"} <= {*place.bound()}

    for _ in range(2):
        more()
        eventually(lambda: len(waiting_singles(place)) < 3)
    place.create("a", "b", size=2, percent=200)

    soon.wait("a drain", lambda: "event=drain gang=streamed/" in soon.log("extender"))
    soon.wait("a card to be free", lambda: any(is_done(each) for each in place.pods()))
    single(place, "single-late", 4)
    told = "kept for gang streamed/train at most until"
    soon.wait("a single pod to be told", lambda: told in soon.log("extender"))
    soon.wait("both to be bound", is_whole)
    soon.wait("a single pod to go on waiting", lambda: waiting_singles(place) != [])
