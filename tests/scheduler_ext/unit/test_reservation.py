"""Cards held for a waiting pod: they keep others out and nobody in, and end by themselves."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.node_info import is_emptier, without_pod
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.snapshot.snapshot import (
    Snapshot,
    assume,
    expire,
    forget,
    node_deleted,
    node_updated,
    orphan,
    pod_deleted,
    pod_updated,
    pods_listed,
)
from scheduler_ext.waiting.order import next_to_wake, waiting_pod
from tests.scheduler_ext.reserving import NOW_MS, held
from tests.scheduler_ext.worlds import node, on, percent, read, rebuilt, request_of
from tests.worlds import Json, card
from timekeeper.core.ledger.reservation import (
    MAX_MS,
    SKEW_MS,
    Reservation,
    condition_of,
    read_reservation,
    withdrawn,
)
from timekeeper.core.values import Placement, Slice


def free(snapshot: Snapshot, where: str = "n") -> list[int]:
    """What is free of each card, in thousandths."""
    return [room.share_milli for room in snapshot.node(where).free_by_card if room is not None]


def fits(snapshot: Snapshot, raw: Json, where: str = "n") -> bool:
    """Whether a pod that has no seat fits there."""
    return not isinstance(fit(request_of(raw), snapshot.node(where)), Refusal)


def fits_itself(snapshot: Snapshot, raw: Json, where: str = "n") -> bool:
    """Whether the pod fits there beside what is held for it."""
    there = without_pod(snapshot.node(where), raw["metadata"]["uid"])
    return not isinstance(fit(request_of(raw), there), Refusal)


def with_holder(waiting: Json, now_ms: int = NOW_MS) -> Snapshot:
    """One card, half of it taken by a pod that runs, and this waiting pod."""
    return rebuilt([node("n")], [on(percent(50, "victim"), "n", "GPU-0"), waiting], now_ms)


def test_held_cards_are_kept_from_all_but_the_pod_they_are_held_for() -> None:
    raw = held(percent(60), "n", "GPU-0")
    snapshot = rebuilt([node("n")], [raw], NOW_MS)

    assert free(snapshot) == [400]
    assert not fits(snapshot, percent(50, "other"))
    assert fits(snapshot, percent(40, "small"))
    assert fits_itself(snapshot, raw)


def test_while_the_victim_still_runs_no_pod_is_admitted_and_free_is_never_below_zero() -> None:
    raw = held(percent(60), "n", "GPU-0")
    snapshot = with_holder(raw)

    assert free(snapshot) == [0]
    assert not fits(snapshot, percent(1, "other"))
    assert not fits_itself(snapshot, raw)


def test_once_the_victim_is_gone_its_cards_are_for_the_pod_alone() -> None:
    raw = held(percent(60), "n", "GPU-0")
    before = with_holder(raw)
    after = pod_updated(
        before, read({**on(percent(50, "victim"), "n", "GPU-0"), "status": {"phase": "Failed"}})
    )

    assert free(after) == [400]
    assert fits_itself(after, raw)
    assert is_emptier(after.node("n"), before.node("n"))


def test_the_pod_that_cards_are_held_for_is_woken_when_they_free() -> None:
    raw = held(percent(100), "n", "GPU-0")
    full = on(percent(100, "victim"), "n", "GPU-0")
    before = rebuilt([node("n")], [full, raw], NOW_MS)
    after = pod_updated(before, read({**full, "status": {"phase": "Failed"}}))
    waiting_pods = [
        waiting_pod(read(each), BINPACK, ["n"]) for each in (percent(100, "high", priority=9), raw)
    ]

    assert is_emptier(after.node("n"), before.node("n"))
    chosen = next_to_wake(after.node("n"), waiting_pods, lambda _: Steps())
    assert chosen is not None
    assert chosen.pod.name == "p"


def bound(raw: Json) -> Json:
    """The pod bound on the first card."""
    return on(raw, "n", "GPU-0")


@pytest.mark.parametrize(
    "ended",
    [
        lambda s, raw: pod_updated(s, read(held(percent(60), "n", "GPU-0", status="False")), NOW_MS),
        lambda s, raw: pod_updated(s, read({**raw, "status": {"phase": "Pending"}}), NOW_MS),
        lambda s, raw: pod_updated(s, read({**raw, "status": {**raw["status"], "phase": "Failed"}}), NOW_MS),
        lambda s, raw: pod_deleted(s, read(raw), NOW_MS),
        lambda s, raw: pods_listed(s, [], NOW_MS),
        lambda s, raw: orphan(s, "uid-p", NOW_MS),
        lambda s, raw: expire(s, NOW_MS + 60_000),
        lambda s, raw: pod_updated(
            s, read({**raw, "metadata": {**raw["metadata"], "deletionTimestamp": "2026-11-20T04:32:53Z"}})
        ),
        lambda s, raw: pod_updated(
            s, read({**raw, "spec": {**raw["spec"], "schedulingGates": [{"name": "wait"}]}}), NOW_MS
        ),
    ],
    ids=["withdrawn", "without", "terminal", "gone", "unlisted", "orphaned", "late", "deleting", "gated"],
)
def test_a_reservation_ends(ended: Any) -> None:
    raw = held(percent(60), "n", "GPU-0")
    snapshot = rebuilt([node("n")], [raw], NOW_MS)
    assert free(snapshot) == [400]

    assert free(ended(snapshot, raw)) == [1000]


def test_a_reservation_that_has_ended_does_not_come_back_with_the_next_event() -> None:
    raw = held(percent(60), "n", "GPU-0")
    snapshot = expire(rebuilt([node("n")], [raw], NOW_MS), NOW_MS + 60_000)

    raw["metadata"]["resourceVersion"] = "4"
    assert free(pod_updated(snapshot, read(raw), NOW_MS + 60_000)) == [1000]


def test_bound_it_takes_its_cards_once_here_or_elsewhere() -> None:
    raw = held(percent(60), "n", "GPU-0")
    snapshot = rebuilt([node("n"), node("m")], [raw], NOW_MS)
    there = assume(snapshot, read(raw), "m", Placement((("main", (Slice("m-GPU-0", 0, 600, 9600),)),)))

    assert free(pod_updated(snapshot, read(bound(raw)))) == [400]
    assert free(there) == [1000]
    assert free(there, "m") == [400]


def test_a_pod_whose_binding_was_refused_still_has_its_cards_held() -> None:
    raw = held(percent(60), "n", "GPU-0")
    snapshot = rebuilt([node("n"), node("m")], [raw], NOW_MS)
    there = assume(snapshot, read(raw), "m", Placement((("main", (Slice("m-GPU-0", 0, 600, 9600),)),)))

    assert forget(there, "uid-p", NOW_MS) == snapshot
    assert free(forget(there, "uid-p", NOW_MS + 60_000)) == [1000]


def test_an_assumed_pod_is_not_moved_by_what_is_held_for_it_elsewhere() -> None:
    raw = percent(60)
    snapshot = rebuilt([node("n"), node("m")], [raw], NOW_MS)
    there = assume(snapshot, read(raw), "m", Placement((("main", (Slice("m-GPU-0", 0, 600, 9600),)),)))

    seen = pod_updated(there, read(held(raw, "n", "GPU-0")), NOW_MS)

    assert free(seen) == [1000]
    assert free(seen, "m") == [400]


FORGED = [
    held(percent(60), "n", "GPU-7"),
    held(percent(60), "n", "GPU-0", containers={}),
    held(percent(60), "n", "GPU-0", containers={"main": []}),
    held(percent(60), "n", "GPU-0", containers=7),
    held(percent(60), "n", "GPU-0", version=2),
    held(percent(60), "n", "GPU-0", node=""),
    held(percent(60), "n", "GPU-0", node=7),
    held(percent(60), "n", "GPU-0", until="tomorrow"),
    held(percent(60), "n", "GPU-0", until=None),
    held(percent(60), "n", "GPU-0", until_ms=NOW_MS + MAX_MS + 1_000),
    held(percent(60), "n", "GPU-0", since_ms=NOW_MS + 10 * SKEW_MS, until_ms=NOW_MS + 11 * SKEW_MS),
    held(
        percent(60),
        "n",
        "GPU-0",
        containers={"main": [{"uuid": "GPU-0", "index": 0, "share_milli": 1000, "memory_mib": 16000}]},
    ),
    held(percent(60), "elsewhere", "GPU-0"),
]


@pytest.mark.parametrize("raw", FORGED)
def test_a_forged_or_overlong_reservation_holds_no_card_and_closes_no_node(raw: Json) -> None:
    snapshot = rebuilt([node("n")], [raw], NOW_MS)

    assert free(snapshot) == [1000]
    assert snapshot.node("n").closed == ""


def test_a_reservation_holds_no_card_that_the_inventory_no_longer_has() -> None:
    raw = held(percent(60), "n", "GPU-1")
    two = node("n", card(0), card(1))
    snapshot = rebuilt([two], [raw], NOW_MS)
    assert free(snapshot) == [1000, 400]

    shrunk = node_updated(snapshot, read_node(node("n")))

    assert free(shrunk) == [1000]
    assert shrunk.node("n").closed == ""
    assert free(node_updated(node_deleted(shrunk, "n"), read_node(two))) == [1000, 400]


def test_kube_scheduler_counts_nothing_of_a_pod_that_is_not_there_yet() -> None:
    snapshot = rebuilt([node("n")], [held(percent(60), "n", "GPU-0")], NOW_MS)

    assert dict(snapshot.node("n").left)["bursar.dev/gpu-percent"] == 100


@pytest.mark.parametrize("free_ms", [None, NOW_MS + 1_002])
def test_what_is_written_is_read_back(free_ms: int | None) -> None:
    placement = Placement((("a", (Slice("GPU-0", 0, 500, 8000), Slice("GPU-1", 1, 500, 8000))),))
    made = Reservation("n", placement, NOW_MS, NOW_MS + 61_234, free_ms=free_ms)
    raw = {"status": {"conditions": [{"type": "Ready"}, condition_of(made)]}}

    assert read_reservation(raw) == made
    assert read_reservation({"status": {"conditions": [withdrawn("Late", "text", NOW_MS)]}}) is None
    assert read_reservation({}) is None
    assert json.loads(condition_of(made)["message"])["version"] == 1


def test_of_two_pods_for_which_parts_of_one_card_are_held_the_earlier_takes_the_first_that_is_free() -> None:
    """Two halves, each with a pod on it that must leave; one of them has left."""
    busy, waiting = on(percent(50, "busy"), "n", "GPU-0"), [percent(50, "first"), percent(50, "second")]
    holds = [held(raw, "n", "GPU-0", since_ms=NOW_MS + 1000 * at) for at, raw in enumerate(waiting)]
    snapshot = rebuilt([node("n", card(0))], [busy, *holds], NOW_MS)

    found = [as_found_by(f"uid-{name}", snapshot.node("n")) for name in ("first", "second", "third")]

    rooms = [each.free_by_card[0] for each in found]
    assert [room.share_milli for room in rooms if room is not None] == [500, 0, 0]


def test_a_card_that_was_freed_for_a_later_pod_is_not_taken_by_an_earlier_one_that_has_another() -> None:
    """Two cards, of which the victim of the later pod leaves first."""
    busy, waiting = on(percent(100, "busy"), "n", "GPU-0"), [percent(100, "first"), percent(100, "second")]
    holds = [held(raw, "n", f"GPU-{at}", since_ms=NOW_MS + 1000 * at) for at, raw in enumerate(waiting)]
    snapshot = rebuilt([node("n", card(0), card(1))], [busy, *holds], NOW_MS)

    found = [as_found_by(f"uid-{name}", snapshot.node("n")) for name in ("first", "second")]

    rooms = [[room.share_milli for room in each.free_by_card if room is not None] for each in found]
    assert rooms == [[0, 0], [0, 1000]]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    st.sampled_from(["message", "lastTransitionTime", "status", "conditions", "containers", "until", "node"]),
)
def test_reading_one_never_raises(value: Any, where: str) -> None:
    raw = held(percent(60), "n", "GPU-0")
    if where == "conditions":
        raw["status"]["conditions"] = value
    elif where in ("containers", "until", "node"):
        condition = raw["status"]["conditions"][1]
        condition["message"] = json.dumps(json.loads(condition["message"]) | {where: value})
    else:
        raw["status"]["conditions"][1][where] = value

    assert read_pod(raw) is not None
    rebuilt([node("n")], [raw], NOW_MS)


# through the verbs


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "plain", "bind", "end", "gone", "assume", "forget", "wait"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 1),
        st.integers(0, 120),
    ),
    max_size=25,
)


@given(STEPS)
def test_whatever_happens_the_books_are_those_that_the_objects_alone_would_make(
    steps: list[tuple[str, str, int, int]],
) -> None:
    now, there = NOW_MS, [node("n", card(0), card(1))]
    objects: dict[str, Json] = {}
    snapshot = rebuilt(there, [], now)
    for version, (what, name, at, seconds) in enumerate(steps):
        raw = objects.get(name) or percent(60, name)
        is_bound = bool(raw["spec"].get("nodeName"))
        if what == "wait":
            now += seconds * 1000
            snapshot = expire(snapshot, now)
        elif what == "assume" and name in objects and not is_bound:
            placement = Placement((("main", (Slice(f"GPU-{at}", at, 600, 9600),)),))
            snapshot = assume(snapshot, read(raw), "n", placement)
        elif what == "forget":
            snapshot = forget(snapshot, f"uid-{name}", now)
        elif what == "gone" and name in objects and not (is_bound and raw["status"]["phase"] == "Running"):
            snapshot = pod_deleted(snapshot, read(objects.pop(name)), now)
        elif what in ("hold", "plain", "bind") and not is_bound:
            raw = percent(60, name)
            if what == "hold":
                raw = held(raw, "n", f"GPU-{at}", since_ms=now, until_ms=now + seconds * 1000)
            elif what == "bind":
                raw = on(raw, "n", f"GPU-{at}")
            raw["metadata"] = {**raw["metadata"], "resourceVersion": str(version)}
            objects[name] = raw
            snapshot = pod_updated(snapshot, read(raw), now)
        elif what == "end" and is_bound:
            raw = {**raw, "status": {"phase": "Succeeded"}}
            objects[name] = raw
            snapshot = pod_updated(snapshot, read(raw), now)
    for name in "abc":
        snapshot = forget(snapshot, f"uid-{name}", now)

    assert expire(snapshot, now) == rebuilt(there, list(objects.values()), now)
    assert all(room.share_milli >= 0 for room in snapshot.node("n").free_by_card if room is not None)
