"""The snapshot: which cards a pod holds until when, and what an event changes."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import is_as_free, is_emptier
from scheduler_ext.snapshot.snapshot import (
    assume,
    forget,
    node_updated,
    orphan,
    pod_deleted,
    pod_updated,
    pods_listed,
)
from tests.scheduler_ext.snapshots import Json, shares, why
from tests.scheduler_ext.worlds import asking, bound, cards_of, node, on, percent, read, rebuilt, request_of
from tests.worlds import card, container, status, terminated
from tests.worlds import running as running_state
from timekeeper.core.values import Placement


def test_a_pod_holds_its_cards_until_its_gpu_containers_have_ended() -> None:
    at = "2026-11-20T04:32:53Z"
    raw = on(percent(40), "n", "GPU-0")

    def held(phase: str, **states: Json) -> bool:
        return shares(rebuilt([node("n")], [{**raw, "status": status(phase, **states)}])) == [600]

    assert held("Pending")
    assert held("Running", main=running_state(at))
    assert held("Running", main=terminated(at, at))
    assert held("Failed", main=running_state(at))
    assert not held("Failed", main=terminated(at, at))
    assert not held("Succeeded", main=terminated(at, at))


def test_a_deletion_that_is_only_requested_frees_nothing() -> None:
    raw = on(percent(40), "n", "GPU-0")
    raw["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"

    assert shares(rebuilt([node("n")], [raw])) == [600]


def test_a_pod_that_ended_before_its_object_went_frees_its_cards_at_once() -> None:
    raw = on(percent(40), "n", "GPU-0")
    snapshot = rebuilt([node("n")], [raw])

    ended = read({**raw, "status": {"phase": "Failed"}})
    assert pod_deleted(snapshot, ended, 0) == rebuilt([node("n")], [])


def test_an_orphaned_pod_counts_for_at_most_the_longest_grace_period() -> None:
    raw = on(percent(40, terminationGracePeriodSeconds=86_400), "n", "GPU-0")
    before = replace(rebuilt([node("n")], [raw]), most_grace_ms=60_000)

    snapshot = pod_deleted(before, read(raw), 1_000)
    allocation = snapshot.allocation("uid-p")

    assert allocation is not None
    assert (allocation.state, allocation.until_ms) == ("orphaned", 61_000)


def test_what_a_list_no_longer_has_goes_on_holding_its_cards() -> None:
    snapshot = pods_listed(rebuilt([node("n")], [on(percent(40), "n", "GPU-0")]), [], 0)

    assert shares(snapshot) == [600]
    assert len(snapshot.pods) == 0


def test_what_is_only_assumed_outlives_a_list_that_may_be_older() -> None:
    raw = percent(40)
    snapshot = rebuilt([node("n")], [raw])
    placement = fit(request_of(raw), snapshot.node("n"))
    assert isinstance(placement, Placement)
    snapshot = assume(snapshot, read(raw), "n", placement)

    for older in ([], [read(raw)]):
        assert shares(pods_listed(snapshot, older, 0)) == [600]
    touched = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "9"}}
    assert shares(pod_updated(snapshot, read(touched))) == [600]
    assert shares(forget(snapshot, "uid-p")) == [1000]
    assert shares(orphan(snapshot, "uid-p", 0)) == [600]


def test_a_refusal_does_not_unseat_a_pod_that_was_seen_bound() -> None:
    snapshot = rebuilt([node("n")], [on(percent(40), "n", "GPU-0")])

    assert forget(snapshot, "uid-p") == snapshot


def test_an_assumed_pod_that_turns_up_elsewhere_moves_there() -> None:
    raw = percent(40)
    snapshot = rebuilt([node("n"), node("m")], [raw])
    placement = fit(request_of(raw), snapshot.node("n"))
    assert isinstance(placement, Placement)

    snapshot = pod_updated(assume(snapshot, read(raw), "n", placement), read(on(raw, "m", "m-GPU-0")))

    assert shares(snapshot, "n") == [1000]
    assert shares(snapshot, "m") == [600]


def test_a_binding_that_was_expected_counts_nothing_of_its_node_again() -> None:
    raw = percent(40)
    snapshot = rebuilt([node("n")], [raw])
    placement = fit(request_of(raw), snapshot.node("n"))
    assert isinstance(placement, Placement)
    assumed = assume(snapshot, read(raw), "n", placement)

    now = pod_updated(assumed, read(on(raw, "n", "GPU-0")))

    assert now.node("n") == rebuilt([node("n")], [on(raw, "n", "GPU-0")]).node("n")
    assert is_as_free(now.node("n"), assumed.node("n"))
    assert not is_as_free(assumed.node("n"), snapshot.node("n"))
    elsewhere = pod_updated(assumed, read(on(raw, "n", "GPU-1")))
    assert not is_as_free(elsewhere.node("n"), assumed.node("n"))
    there = now.node("n")
    others = [
        structs.replace(there, cpu_left=7),
        structs.replace(there, closed="claims"),
        structs.replace(there, unnamed=1),
    ]
    assert not any(is_as_free(other, there) for other in others)


def devices(**containers: list[Json]) -> str:
    return json.dumps({"version": 1, "containers": containers})


SLICE = {"uuid": "GPU-0", "index": 0, "share_milli": 500, "memory_mib": 8000}


@pytest.mark.parametrize(
    ("annotation", "word"),
    [
        ("", "placement"),
        ("{}", "placement"),
        (devices(main=[{**SLICE, "share_milli": 1}]), "placement"),
        (devices(main=[{**SLICE, "uuid": "GPU-9"}]), "placement"),
        (devices(other=[SLICE]), "placement"),
        (devices(main=[SLICE, {**SLICE, "uuid": "GPU-1"}]), "placement"),
        (None, "unplaced"),
    ],
)
def test_a_placement_that_cannot_be_believed_closes_its_node_and_frees_no_card(
    annotation: str | None, word: str
) -> None:
    raw = bound(percent(50), "n", annotation)
    snapshot = rebuilt([node("n", card(0), card(1)), node("m")], [raw])

    assert snapshot.node("n").closed == word
    assert why(snapshot, percent(1)).startswith("node is closed for sharing: ")
    assert cards_of(fit(request_of(percent(1)), snapshot.node("m")))
    ended = pod_deleted(snapshot, read({**raw, "status": {"phase": "Succeeded"}}), 0)
    assert ended.node("n").closed == ""


def test_a_node_that_is_closed_for_two_reasons_shows_the_same_one_whichever_came_first() -> None:
    pods = [on(percent(50, "p"), "n", "GPU-9"), bound(percent(50, "q"), "n", None)]
    assert {rebuilt([node("n")], [pod]).node("n").closed for pod in pods} == {"placement", "unplaced"}

    one, other = (rebuilt([node("n")], listed) for listed in (pods, pods[::-1]))

    assert one == other
    assert one.node("n").closed == "placement"


def test_a_placement_counts_only_for_a_pod_that_is_bound() -> None:
    raw = percent(50)
    raw["metadata"]["annotations"] = {"bursar.dev/devices": devices(main=[SLICE])}

    assert shares(rebuilt([node("n")], [raw])) == [1000]


def test_an_annotation_on_a_pod_that_requests_no_gpu_means_nothing() -> None:
    raw = bound(asking(container()), "n", devices(main=[SLICE]))

    snapshot = rebuilt([node("n")], [raw])

    assert snapshot.node("n").closed == ""
    assert shares(snapshot) == [1000]


def test_a_malformed_pod_that_got_bound_closes_its_node_while_any_container_runs() -> None:
    raw = bound(percent(150), "n", None)
    at = "2026-11-20T04:32:53Z"

    assert rebuilt([node("n")], [raw]).node("n").closed == "unplaced"
    still = {**raw, "status": status("Failed", main=running_state(at))}
    assert rebuilt([node("n")], [still]).node("n").closed == "unplaced"
    done = {**raw, "status": status("Failed", main=terminated(at, at))}
    assert rebuilt([node("n")], [done]).node("n").closed == ""


def test_a_card_that_leaves_the_inventory_under_a_pod_closes_the_node_until_it_is_back() -> None:
    snapshot = rebuilt([node("n", card(0), card(1))], [on(percent(50), "n", "GPU-0")])

    without = node_updated(snapshot, read_node(node("n", card(1))))

    assert without.node("n").closed == "placement"
    assert node_updated(without, read_node(node("n", card(0), card(1)))) == snapshot


def test_a_heartbeat_of_a_node_or_pod_leaves_every_node_as_it_is() -> None:
    raw = on(percent(50), "n", "GPU-0")
    snapshot = rebuilt([node("n"), node("m")], [raw])

    again = node_updated(snapshot, read_node({**node("n"), "spec": {"x": 1}}))
    later = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "77"}}
    touched = pod_updated(again, read(later))

    assert again is snapshot
    assert list(touched.nodes.changed_since(snapshot.nodes)) == []
    assert touched.pods.get("uid-p") == read(later)


def test_only_the_node_of_an_event_changes() -> None:
    snapshot = rebuilt([node(f"n{at}") for at in range(50)], [])

    changed = pod_updated(snapshot, read(on(percent(50), "n7", "n7-GPU-0")))

    assert list(changed.nodes.changed_since(snapshot.nodes)) == ["n7"]


@pytest.mark.parametrize(
    ("before", "after", "emptier"),
    [
        ([], [on(percent(50), "n", "GPU-0")], False),
        ([on(percent(50), "n", "GPU-0")], [], True),
        ([on(percent(50), "n", "GPU-0")], [on(percent(50), "n", "GPU-0")], False),
        ([bound(percent(50), "n", None)], [], True),
        ([], [bound(percent(50), "n", None)], False),
    ],
)
def test_a_node_is_roomier_when_a_card_of_it_is(before: list[Json], after: list[Json], emptier: bool) -> None:
    old, new = (rebuilt([node("n")], pods).node("n") for pods in (before, after))

    assert is_emptier(new, old) is emptier


def test_a_node_is_roomier_when_a_card_heals_comes_or_the_node_is_new() -> None:
    sick = rebuilt([node("n", card(0, healthy=False))], []).node("n")
    well = rebuilt([node("n", card(0))], []).node("n")
    two = rebuilt([node("n", card(0), card(1))], []).node("n")

    assert is_emptier(well, sick)
    assert is_emptier(two, well)
    assert is_emptier(well, None)


keys = st.text(max_size=3)


@pytest.mark.untraced
@given(st.lists(st.tuples(keys, st.integers() | st.none())))
def test_a_map_is_a_dict_that_keeps_its_former_versions(changes: list[tuple[str, int | None]]) -> None:
    model: dict[str, int] = {}
    versions: list[tuple[Map[int], dict[str, int]]] = []
    current: Map[int] = Map()
    for key, value in changes:
        versions.append((current, dict(model)))
        if value is None:
            current = current.without(key)
            model.pop(key, None)
        else:
            current = current.set(key, value)
            model[key] = value

    for each, then in [*versions, (current, model)]:
        assert dict(each.items()) == then
        assert len(each) == len(then)
        assert each == Map(then)
        touched = {key for key in {**model, **then} if model.get(key) is not then.get(key)}
        assert set(current.changed_since(each)) == touched
