"""What tenants write, or a database that is away, makes nothing in the settler grow without bound."""

from dataclasses import replace
from operator import attrgetter

import pytest

from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import READ, SECOND, T0, Town, gpu_pod, lease, node
from timekeeper import metrics
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.core import names
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed
from timekeeper.settler.cluster.cluster_state import ClusterState, WatchUpdate
from timekeeper.settler.cluster.watched_pods import MAX_UNREADABLE
from timekeeper.settler.state.pods_without_node import MAX_ESTIMATES, MAX_PASSED, PodsWithoutNode


def waiting(number: int, models: tuple[str, ...] = ()) -> LedgerPod:
    """A pod without a node; its request differs with ``models``."""
    pod = read_pod(gpu_pod(f"p{number}", node="", created_ms=T0))
    assert isinstance(pod, LedgerPod)
    return replace(pod, request=replace(pod.request, models=models))


def heard(cluster: ClusterState, *pods: LedgerPod, deleted: bool = False) -> None:
    for pod in pods:
        cluster.apply(WatchUpdate("pods", T0, ObjectChanged(pod, deleted)))


def unreadable(number: int, problem: str) -> LedgerPod:
    read = read_pod(gpu_pod(f"p{number}"))
    assert read is not None
    return replace(read, charge="none", metered=None, doubt=problem)


@pytest.fixture
def cluster() -> ClusterState:
    made = ClusterState()
    read = READ["nodes"](node(cards=2))
    assert read is not None
    made.apply(WatchUpdate("nodes", T0, ObjectsListed((read,))))
    return made


def test_estimates_of_requests_that_tenants_reword_are_dropped(cluster: ClusterState) -> None:
    waits = PodsWithoutNode()
    for number in range(3 * MAX_ESTIMATES // 2):
        heard(cluster, waiting(0, ("A100", f"x{number}")))
        waits.update(cluster, BudgetSettings(), T0, attrgetter("request"))

    assert 0 < len(waits._estimates) <= MAX_ESTIMATES
    assert waits.rates == {"team-a": 1000}


@pytest.mark.parametrize(
    "annotations",
    [{}, {names.HELD: "budget"}, {names.HELD: "budget", names.DECLARED: "60"}],
    ids=["in budget", "released", "declares its time"],
)
def test_a_deleted_pod_that_a_finalizer_keeps_reserves_nothing(
    cluster: ClusterState, annotations: dict[str, str]
) -> None:
    waits, raw = PodsWithoutNode(), gpu_pod("p", node="", annotations=annotations)
    pod = read_pod(raw)
    raw["metadata"] |= {"deletionTimestamp": iso(T0 + SECOND), "deletionGracePeriodSeconds": 0}
    left = read_pod(raw)
    assert isinstance(pod, LedgerPod)
    assert isinstance(left, LedgerPod)

    heard(cluster, pod)
    waits.update(cluster, BudgetSettings(), T0, attrgetter("request"))
    before = (bool(waits.rates or waits.declaring), waits.seen)
    assert before == (True, {"team-a": 1})
    heard(cluster, left)
    waits.update(cluster, BudgetSettings(), T0, attrgetter("request"))

    assert (waits.rates, waits.declaring, waits.seen) == ({}, set(), {})


def test_pods_that_come_and_go_leave_no_moments_behind(cluster: ClusterState) -> None:
    waits = PodsWithoutNode()
    heard(cluster, waiting(0))
    for number in range(1, 4000):
        heard(cluster, waiting(number))
        waits.update(cluster, BudgetSettings(), T0, attrgetter("request"))
        heard(cluster, waiting(number), deleted=True)
        waits.update(cluster, BudgetSettings(), T0, attrgetter("request"))

    assert len(waits._expiries) <= MAX_PASSED + 4
    assert waits.rates == {"team-a": 1000}
    waits.update(cluster, BudgetSettings(), T0 + BudgetSettings().lookahead_ms, attrgetter("request"))
    assert waits.rates == {}  # the one that waits still was not forgotten


def test_pods_that_cannot_be_read_while_the_database_is_away_are_counted_beyond_some(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    before = metrics.UNREADABLE_PODS._value.get()
    for number in range(MAX_UNREADABLE + 7):
        item = unreadable(number, "no")
        town.settler.apply(WatchUpdate("pods", T0, ObjectChanged(item, deleted=False)))
    town.settler.apply(WatchUpdate("pods", T0, ObjectChanged(unreadable(1, "still no"), deleted=False)))
    assert (len(town.settler.cluster.pods.unreadable), town.settler.cluster.pods.unreadable_omitted) == (
        MAX_UNREADABLE,
        7,
    )

    town.advance(SECOND, heard=False)

    assert metrics.UNREADABLE_PODS._value.get() - before == MAX_UNREADABLE + 7
    assert (town.settler.cluster.pods.unreadable, town.settler.cluster.pods.unreadable_omitted) == ({}, 0)


@pytest.mark.parametrize(
    ("reference", "owner"),
    [
        ({"kind": "Job", "name": "train"}, "Job/train"),
        ({"kind": "K" * 63, "name": "n" * 253}, "K" * 63 + "/" + "n" * 253),
        ({"kind": "Job", "name": "a\0b"}, ""),  # PostgreSQL stores no NUL
        ({"kind": "Jo\x1b[2Jb", "name": "train"}, ""),
        ({"kind": "=1+1", "name": "train"}, ""),  # a formula in a spreadsheet
        ({"kind": "..", "name": "../groups"}, ""),  # a path in a link
        ({"kind": "Job", "name": "<b>"}, ""),
        ({"kind": "Job", "name": "n" * 254}, ""),
        ({"kind": "K" * 64, "name": "train"}, ""),
    ],
    ids=["harmless", "longest", "NUL", "escape", "formula", "path", "markup", "long name", "long kind"],
)
def test_a_pod_is_charged_whatever_its_controller_is_called(
    town: Town, reference: dict[str, str], owner: str
) -> None:
    owned, other = gpu_pod("owned", started_ms=T0), gpu_pod("other", card=1, started_ms=T0)
    owned["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", owned), ("pods", other))
    town.advance(10 * SECOND)

    sessions = town.get("/v1/sessions").get_json()["sessions"]
    assert [(each["pod"], each["owner"], each["pending"]) for each in sessions] == [
        ("other", "", 10_000_000),
        ("owned", owner, 10_000_000),
    ]
