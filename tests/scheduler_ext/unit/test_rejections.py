"""Nodes whose kubelets refuse every pod, as with a broken driver: other nodes come first for a while."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.plan import plan
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.snapshot import Snapshot, expire, pod_deleted, pod_updated, pods_listed
from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.worlds import bound, in_namespace, node, on, percent, read, rebuilt
from tests.worlds import Json, terminated
from timekeeper.core.object_names import timestamp

UNEXPECTED = "UnexpectedAdmissionError"
WORDS = "Allocate failed due to no healthy devices present, which is unexpected"
T0 = datetime(2026, 11, 20, 10, tzinfo=UTC)
T0_S = int(T0.timestamp())


def scheduled(at_s: float) -> list[Json]:
    moment = (T0 + timedelta(seconds=at_s)).isoformat()
    return [{"type": "PodScheduled", "status": "True", "lastTransitionTime": moment}]


def refused(
    name: str,
    at_s: float,
    namespace: str = "team-a",
    reason: str = UNEXPECTED,
    where: str = "a",
    **status: object,
) -> Json:
    """A pod that the kubelet of node a refused just after its Binding."""
    words = {"conditions": scheduled(at_s), "startTime": timestamp(1000 * T0_S), "reason": reason}
    raw = bound(percent(10, name), where, None, "Failed", **words, message=WORDS, **status)
    return in_namespace(namespace, raw)


def started(name: str, at_s: float, namespace: str = "team-a") -> Json:
    """A pod that the kubelet of node a starts."""
    fields = {"conditions": scheduled(at_s), "startTime": timestamp(1000 * T0_S)}
    raw = on(percent(10, name), "a", "a-GPU-0")
    return in_namespace(namespace, {**raw, "status": {"phase": "Pending", **fields}})


def after(*pods: Json, until_s: float = 0.0, gone: bool = False) -> Snapshot:
    """What is known at that time, when each of these pods was seen as it was bound. ``gone``: their objects
    are deleted at once."""
    snapshot = rebuilt([node("a")], [])
    for raw in pods:
        value = read(raw)
        now_ms = value.hold.bound_ms or 0
        snapshot = pod_updated(expire(snapshot, now_ms), value, now_ms)
        snapshot = pod_deleted(snapshot, value, now_ms) if gone else snapshot
    return expire(snapshot, int(1000 * (T0_S + until_s)))


def times(*at_s: float, namespace: str = "team-a", first: int = 0) -> list[Json]:
    return [refused(f"{namespace}-{first + number}", at, namespace) for number, at in enumerate(at_s)]


THREE = times(0, 1, 2)
RAN = [{"name": "main", "state": terminated(timestamp(1000 * T0_S), timestamp(1000 * T0_S))}]
MINUTE, HOUR = 60, 3600


@pytest.mark.parametrize(
    ("pods", "at_s", "of_a", "of_b"),
    [
        (THREE, 3, True, False),
        (THREE[:2], 3, False, False),
        ([THREE[0], THREE[0], THREE[0]], 3, False, False),  # one pod, whose object changes
        ([*THREE[:2], refused("other", 2, "team-b")], 3, True, True),  # of several namespaces
        (times(0, 1, 11 * MINUTE), 11 * MINUTE + 1, False, False),
        (THREE, 2 * MINUTE + 1, True, False),
        (THREE, 2 * MINUTE + 2, False, False),
        # it fails again: twice as long, and at most an hour
        ([*THREE, *times(3 * MINUTE, first=3)], 6 * MINUTE + 59, True, False),
        ([*THREE, *times(3 * MINUTE, first=3)], 7 * MINUTE, False, False),
        ([*THREE, *times(*(3 + at for at in range(17)), first=3)], 2 * MINUTE + 2, False, False),  # one burst
        ([*THREE, *times(*(HOUR * at for at in range(1, 9)), first=3)], 9 * HOUR - 1, True, False),
        ([*THREE, *times(*(HOUR * at for at in range(1, 9)), first=3)], 9 * HOUR, False, False),
        # later than it was known, it begins anew
        ([*THREE, *times(2 * HOUR, first=3)], 2 * HOUR + 1, False, False),
        # a pod that starts there ends it, unless it was bound before
        ([*THREE, started("s", 10)], 11, False, False),
        ([*THREE, started("s", 1)], 11, True, False),
        ([*THREE, started("s", 10, "team-b")], 11, True, False),
        ([*THREE[:2], refused("other", 2, "team-b"), started("s", 10, "team-b")], 11, False, False),
        ([*THREE, started("s", 10), *times(20, 21, first=3)], 22, False, False),
        # out of what, and why
        ([refused(str(at), at, reason="OutOfnvidia.com/gpu") for at in range(3)], 3, True, False),
        ([refused(str(at), at, reason="OutOfamd.com/gpu") for at in range(3)], 3, True, False),
        *(
            ([refused(str(at), at, reason=reason) for at in range(3)], 3, False, False)
            for reason in (
                "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfexample.com/nic", "OutOf", "NodeAffinity",
                "SysctlForbidden", "Evicted", "Preempting", "NodeShutdown", "",
            )
        ),
        # pods that ran, and were refused when their kubelet was restarted
        ([refused(str(at), at, containerStatuses=RAN) for at in range(3)], 3, False, False),
    ],
)  # fmt: skip
def test_a_node_comes_last_after_a_few_rejections_for_a_time_that_grows(
    pods: list[Json], at_s: float, of_a: bool, of_b: bool
) -> None:
    for gone in (False, True):
        known = after(*pods, until_s=at_s, gone=gone)

        assert ["a" in known.comes_last(namespace) for namespace in ("team-a", "team-b")] == [of_a, of_b]
    assert len(after(*pods, until_s=100 * HOUR).rejections) == 0


SEVERAL = ("team-a", "team-b", "team-c")


def unaligned(*at_s: float, namespace: str = "team-a", reason: str = "TopologyAffinityError") -> list[Json]:
    return [refused(f"{namespace}-{at}", at, namespace, reason) for at in at_s]


@pytest.mark.parametrize(
    ("pods", "at_s", "of_a", "of_b"),
    [
        (unaligned(0, 1, 2), 3, True, False),
        (unaligned(0, 1, 2, reason="SMTAlignmentError"), 3, True, False),
        (unaligned(0, 1), 3, False, False),
        # of however many namespaces: never for all, and it counts in nothing that is
        ([*unaligned(0, 1), *unaligned(2, 3, namespace="team-b")], 4, False, False),
        ([*unaligned(0, 1, 2), *unaligned(3, 4, 5, namespace="team-b")], 6, True, True),
        ([raw for name in SEVERAL for raw in unaligned(0, 1, namespace=name)], 3, False, False),
        ([*THREE[:2], *unaligned(2, 3, namespace="team-b")], 4, False, False),
        ([*THREE, *unaligned(3, 4, namespace="team-b")], 5, True, False),
        ([*THREE[:2], *unaligned(2)], 3, False, False),
        # it grows, and ends, as the other does
        (unaligned(0, 1, 2, 3 * MINUTE), 6 * MINUTE + 59, True, False),
        (unaligned(0, 1, 2, 3 * MINUTE), 7 * MINUTE, False, False),
        ([*unaligned(0, 1, 2), started("s", 10)], 11, False, False),
        ([*unaligned(0, 1, 2), started("s", 1)], 11, True, False),
        ([*unaligned(0, 1, 2), started("s", 10, "team-b")], 11, True, False),
        # it delays no end of what holds for all
        ([*THREE[:2], refused("o", 2, "team-b"), *unaligned(20), started("s", 10)], 21, False, False),
    ],
)  # fmt: skip
def test_pods_that_a_node_could_not_align_demote_it_for_their_namespace_alone(
    pods: list[Json], at_s: float, of_a: bool, of_b: bool
) -> None:
    known = after(*pods, until_s=at_s)

    assert ["a" in known.comes_last(namespace) for namespace in ("team-a", "team-b")] == [of_a, of_b]
    assert len(after(*pods, until_s=100 * HOUR).rejections) == 0


@pytest.mark.parametrize(
    ("pods", "is_last"),
    [
        (THREE, True),
        (times(-1800, -1799, -1798), False),
        ([*times(-1800, -1799, -1798), *times(2, first=3)], False),
    ],
)
def test_what_was_refused_before_the_start_counts_if_it_is_young(pods: list[Json], is_last: bool) -> None:
    now_ms = 1000 * (T0_S + 3)
    first = rebuilt([node("a")], pods[:3], now_ms)

    known = pods_listed(expire(first, now_ms), [read(raw) for raw in pods], now_ms)

    assert ("a" in known.comes_last("team-a")) == is_last


@pytest.fixture
def world(start: Start) -> Stepped:
    """Two nodes of one card, the first half full, whose kubelet has refused three pods of team-a."""
    world = start("--most-offered", "1")
    world.put_node(node("a"))
    world.put_node(node("b"))
    world.put_pod(on(percent(50, "user"), "a", "a-GPU-0"))
    world.now_ms = 1000 * (T0_S + 3)
    for raw in THREE:
        world.put_pod(raw)
    return world


def test_its_order_changes_and_nothing_is_refused(world: Stepped) -> None:
    mine, theirs = percent(10), in_namespace("team-b", percent(10))

    assert world.prioritize(mine, "a", "b") == {"a": 0, "b": 10}
    assert world.prioritize(theirs, "a", "b") == {"a": 10, "b": 9}
    for policy in ("spread", "random"):
        of_policy = percent(10, annotations={"bursar.dev/policy": policy})
        assert world.prioritize(of_policy, "a", "b") == {"a": 0, "b": 10}
    assert (world.filter(mine, "a", "b")["NodeNames"], world.filter(theirs, "a", "b")["NodeNames"]) == (
        ["b"],
        ["a"],
    )
    assert world.filter(mine, "a")["NodeNames"] == ["a"]
    assert world.prioritize(mine, "a") == {"a": 10}
    world.passes(122, step_s=1)
    assert world.prioritize(mine, "a", "b") == {"a": 10, "b": 9}


def test_it_is_named_with_the_reason(world: Stepped) -> None:
    world.passes(1)

    said = (
        "Until 2026-11-20T10:02:02Z other nodes come first for GPU pods of namespace team-a: the kubelet"
        f" refused several ({UNEXPECTED}: {WORDS})"
    )
    (event,) = [sent for sent in world.api.made("event") if sent["reason"] == "NodeDemoted"]
    assert (event["regarding"]["name"], event["type"], event["note"]) == ("a", "Warning", said)
    assert f"demoted node=a namespace=team-a why={said}" in world.lines
    labels = f'namespace="team-a",node="a",reason="{UNEXPECTED}"'
    metric = f"bursar_extender_node_demoted_until_timestamp_seconds{{{labels}}}"
    assert metric in world.client.get("/metrics").text


@pytest.mark.parametrize(("names", "chosen"), [("ab", {"b"}), ("a", {"a"})])
def test_a_gang_goes_there_last(names: str, chosen: set[str]) -> None:
    gang = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2", "bursar.dev/held": "turn"}
    raws = [percent(50, name=f"p{at}", annotations=gang) for at in range(2)]
    snapshot = rebuilt([node(name) for name in names], [*raws, *THREE], 1000 * (T0_S + 3))
    pods = [read(raw) for raw in raws]

    found = plan(pods, PlanInput(snapshot, UNHEARD, lambda _: BINPACK))

    assert {member.node for member in found.members} == chosen
    assert len(found.members) == 2
