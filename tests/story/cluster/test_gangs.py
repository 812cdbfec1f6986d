"""Gangs from end to end: a real API server, kube-scheduler and controllers, kwok nodes, and every role of
Bursar. A gang has all of its cards, or none of its pods has a node."""

import time
from typing import Any

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.support.control_plane import create_namespace

pytestmark = pytest.mark.timeout(500)

Json = dict[str, Any]
GATE = [{"name": "bursar.dev/budget"}]


def member(name: str, gang: str, size: int, percent: int = 100, where: str = "", **annotations: str) -> Json:
    """A pod of a gang. ``where``: on nodes with this label alone."""
    limits = {"bursar.dev/gpu-percent": str(percent)}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    named = {"bursar.dev/gang": gang, "bursar.dev/gang-size": str(size), **annotations}
    spec = {"containers": [container], "restartPolicy": "Never"}
    return {
        "metadata": {"name": name, "annotations": {"local.bursar.dev/run-for": "600s", **named}},
        "spec": spec | ({"nodeSelector": {"of": where}} if where else {}),
    }


class Place:
    """A namespace with nodes of its own."""

    def __init__(self, stack: Stack, name: str, *cards: int) -> None:
        self.stack, self.name = stack, name
        self.path = create_namespace(stack.cp, name)
        for at, count in enumerate(cards):
            self.node(f"{name}-{at}", count)

    def node(self, name: str, cards: int) -> None:
        """One more node with so many cards."""
        self.stack.cp.api.call(
            "POST", "/api/v1/nodes", kwok_node(name, cards=cards, labels={"of": self.name})
        )

    def create(self, *names: str, gang: str = "train", size: int, **fields: Any) -> None:
        """Members of one gang."""
        for each in names:
            self.stack.cp.api.call("POST", self.path, member(each, gang, size, where=self.name, **fields))

    def pods(self) -> list[Json]:
        found: list[Json] = self.stack.cp.api.call("GET", self.path)["items"]
        return found

    def bound(self) -> list[str]:
        """Names of the pods that have a node."""
        return sorted(each["metadata"]["name"] for each in self.pods() if each["spec"].get("nodeName"))

    def gated(self) -> list[str]:
        """Names of the pods behind the gate."""
        return sorted(
            each["metadata"]["name"] for each in self.pods() if each["spec"].get("schedulingGates") == GATE
        )

    def told(self, name: str) -> list[str]:
        """The Events about a gang on the pod."""
        events = f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"
        found = self.stack.cp.api.call("GET", events)["items"]
        return [
            each["note"] for each in found if each["regarding"]["name"] == name and "ang" in each["reason"]
        ]

    def wait_bound(self, *names: str, within_s: float = 60) -> None:
        """Wait until exactly these have nodes."""
        self.stack.wait(f"{names} to be bound", lambda: self.bound() == sorted(names), within_s=within_s)


def stays_unbound(place: Place, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert place.bound() == []
        time.sleep(0.2)


def test_three_pods_wait_on_two_cards_and_start_together_on_three(stack: Stack, reader: str) -> None:
    place = Place(stack, "short", 1, 1)
    place.create("a", "b", size=3)
    stack.wait(
        "it to say that a member is missing",
        lambda: any("2 of 3 members exist" in e for e in place.told("a")),
    )

    place.create("c", size=3)
    stack.wait(
        "it to say what is missing", lambda: any("1 cards missing" in each for each in place.told("a"))
    )
    stays_unbound(place, 4)
    assert place.gated() == ["a", "b", "c"]
    explained = stack.get("/v1/explain/short/a", reader)
    assert any("2 of 3 members fit" in each["sentence"] for each in explained["steps"])

    place.node("short-2", 1)
    place.wait_bound("a", "b", "c")
    assert place.gated() == []
