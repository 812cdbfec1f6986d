"""Cards that kube-scheduler has freed for another pod: a gang of less priority does not get them."""

import pytest
from msgspec import structs

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.plan import plan
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.nominated import NominatedPods
from scheduler_ext.snapshot.snapshot import Snapshot, assume, pod_deleted, pod_updated
from tests.scheduler_ext.unit.test_gang_plan import member
from tests.scheduler_ext.worlds import node, on, percent, read, rebuilt
from tests.worlds import Json, card
from timekeeper.core.ledger.reservation import Reservation
from timekeeper.core.values import Placement


def nominated(name: str = "urgent", where: str = "n", priority: int = 0) -> Json:
    """It waits for a card of this node, for which another pod was preempted."""
    raw = percent(100, name)
    raw["spec"]["priority"] = priority
    raw["status"] = {"phase": "Pending", "nominatedNodeName": where}
    return raw


def cluster(*raws: Json, cards: int = 2) -> Snapshot:
    return rebuilt([node("n", *(card(at) for at in range(cards)))], [member("a"), member("b"), *raws])


def fitting(snapshot: Snapshot) -> int:
    """How many of two members fit."""
    pods = [snapshot.pods.get(f"uid-{name}") for name in "ab"]
    given = PlanInput(snapshot, UNHEARD, lambda _: BINPACK, nominated=NominatedPods().among(snapshot.pods))
    return len(plan([each for each in pods if each], given).members)


def bound() -> Json:
    raw = nominated()
    raw["spec"]["nodeName"] = "elsewhere"
    return raw


def reserved_gang() -> Json:
    """As the extender nominates it."""
    raw = member("other")
    raw["status"] = nominated()["status"]
    return raw


@pytest.mark.parametrize(
    ("others", "fit"),
    [
        ([], 2),
        ([nominated()], 1),
        ([nominated(), nominated("second", priority=7)], 0),
        ([nominated(priority=-1)], 2),
        ([nominated(where="gone")], 2),
        ([bound()], 2),
        ([reserved_gang()], 2),
    ],
)
def test_a_gang_leaves_a_pod_of_no_less_priority_the_card_that_it_is_nominated_for(
    others: list[Json], fit: int
) -> None:
    assert fitting(cluster(*others)) == fit


def test_a_card_counts_once_when_the_pod_is_about_to_be_bound() -> None:
    snapshot = cluster(nominated())

    assert fitting(assume(snapshot, read(nominated()), "n", a_card())) == 1


def a_card() -> Placement:
    found = read(on(percent(100, "other"), "n", "GPU-0")).placement
    assert found is not None
    return found


def test_who_is_nominated_is_followed() -> None:
    known, snapshot = NominatedPods(), cluster(nominated())
    pod = read(nominated())
    (found,) = known.among(snapshot.pods)
    assert found.name == "urgent"

    others = (
        structs.replace(pod, nominated=""),
        structs.replace(pod, reserved=Reservation("n", a_card(), 0, 60_000, "fragmentation")),
        structs.replace(pod, deleting=True),
        structs.replace(pod, terminal=True),
    )
    for each in others:
        assert known.among(pod_updated(snapshot, each).pods) == ()
        assert len(known.among(snapshot.pods)) == 1
    assert known.among(pod_deleted(snapshot, pod, 1_000).pods) == ()
