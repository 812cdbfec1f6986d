"""Pods and nodes before a preemption, and what a test reads of one."""

from typing import Any

from scheduler_ext.model.standing import NamespaceStandings
from tests.scheduler_ext.preempting import DEBTOR, IN_BUDGET, Stage, in_namespace, unscheduled
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.worlds import node, on, percent
from tests.worlds import card

Json = dict[str, Any]
TWO = node("n", card(0), card(1))


def low(name: str, share: int, uuid: str, priority: int = 0, **fields: Any) -> Json:
    """A pod that runs on a card."""
    return on(percent(share, name, priority=priority, **fields), "n", uuid)


def debtors(name: str, share: int, uuid: str) -> Json:
    """One of a namespace that is over budget, with the class that it had in budget."""
    return in_namespace(low(name, share, uuid), "team-b")


OWES = NamespaceStandings({"team-a": IN_BUDGET, "team-b": DEBTOR})
FRAGMENTED = (TWO, low("a", 60, "GPU-0"), low("b", 70, "GPU-1"), unscheduled("high", 50, priority=9))
OWED = (TWO, debtors("a", 60, "GPU-0"), debtors("b", 70, "GPU-1"), unscheduled("p", 50))


def begins(world: Stage, *names: str) -> None:
    """These pods were offered the node, and have waited long enough."""
    world.offered = {name: ["n"] for name in names}
    world.settles()


def reservation(world: Stage, name: str) -> str:
    """On which node cards are held for the pod, "" where none are."""
    held_for = world.pod(name).reserved
    return held_for.node if held_for is not None else ""


SHARED = (
    node("n", *(card(at) for at in range(3))),
    low("a", 40, "GPU-0"),
    low("b", 40, "GPU-0"),
    low("c", 60, "GPU-1", priority=9),
    low("d", 60, "GPU-2", priority=9),
    unscheduled("high", 90, priority=5),
)
CLAIMED = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


def leaves(raw: Json, at_ms: int) -> Json:
    """The pod, to be gone by then."""
    return {**raw, "metadata": raw["metadata"] | {"deletionTimestamp": stamp(at_ms)}}


def owed_cards(count: int, leaves_ms: int, waiting: int) -> list[Json]:
    """Nodes of one card, each with a debtor's pod on it, the first of which leaves; and so many who wait."""
    nodes = [node(f"n{at}", card(0)) for at in range(count)]
    pods = [
        in_namespace(on(percent(100, f"d{at}"), f"n{at}", f"n{at}-GPU-0"), "team-b") for at in range(count)
    ]
    pods[0] = leaves(pods[0], leaves_ms)
    return [*nodes, *pods, *(unscheduled(f"p{at}", 100) for at in range(waiting))]
