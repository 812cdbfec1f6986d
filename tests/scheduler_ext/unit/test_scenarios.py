"""Scenarios from earlier systems (`scenarios`): each decided by `fit`, and some again by filter,
prioritize and bind."""

import json

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal, malformed
from scheduler_ext.model.node import read_node
from scheduler_ext.scoring.policy import BINPACK, BUILT, SPREAD, Policy
from scheduler_ext.scoring.rank import places, ranked
from scheduler_ext.snapshot.free import Free
from scheduler_ext.snapshot.snapshot import assume, expire, forget, node_updated, pod_deleted, pod_updated
from scheduler_ext.verbs.fit_cache import FitCache, fit_key
from tests.scheduler_ext import scenarios
from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.scenarios import CASES, IDS, Scenario, cards_asked, equal, near, used
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.unit import test_gas
from tests.scheduler_ext.worlds import (
    GIB,
    Json,
    asking,
    bound,
    cards_of,
    mib,
    node,
    on,
    percent,
    place,
    read,
    rebuilt,
    request_of,
    with_used,
)
from tests.worlds import card, container, limits_of


def test_every_scenario_of_the_collection_has_a_row_or_a_reason() -> None:
    told = {scenario.number for scenario in scenarios.TABLE}
    stories, others = scenarios.TOLD_AS_STORIES, scenarios.NOT_OURS
    of_gas = scenarios.TOLD_OF_GAS

    assert sorted([*told, *stories, *of_gas, *others]) == sorted(scenarios.NUMBERS)
    assert [name for name in stories.values() if name not in globals()] == []
    assert [name for name in of_gas.values() if name not in vars(test_gas)] == []


@pytest.mark.parametrize(("scenario", "policy"), CASES, ids=IDS)
def test_fit_decides_as_expected(scenario: Scenario, policy: str) -> None:
    pod = read(scenario.pod(policy))
    there = rebuilt(list(scenario.nodes), list(scenario.pods)).node("n")

    answer = fit(pod.request, there, BUILT[policy]) if pod.request else malformed(pod.malformed)

    assert cards_of(answer) == scenario.cards
    if isinstance(answer, Refusal):
        assert answer.sentence.startswith(scenario.reason)
        assert scenario.reason


@pytest.mark.parametrize(("scenario", "policy"), CASES[::4], ids=IDS[::4])
def test_and_so_do_filter_and_bind(running: Stepped, scenario: Scenario, policy: str) -> None:
    decides_as_expected(running, scenario, policy)


def decides_as_expected(running: Running, scenario: Scenario, policy: str) -> None:
    """Filter, prioritize and bind do as the scenario says."""
    for raw in scenario.nodes:
        running.put_node(raw)
    for raw in scenario.pods:
        running.put_pod(raw)
    pod = running.put_pod(scenario.pod(policy))

    answer = running.filter(pod, "n")
    error = running.bind(pod, "n")

    if scenario.cards:
        assert (answer["NodeNames"], error) == (["n"], "")
        assert cards_bound(running, "p") == scenario.cards
        assert running.prioritize(pod, "n").keys() == {"n"}
    else:
        assert answer["NodeNames"] == []
        (reason,) = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.values()
        assert reason.startswith(scenario.reason)
        assert error == reason
        assert running.api.made("bind") == []


def cards_bound(world: Running, name: str) -> dict[str, list[int]]:
    """Container -> indexes of its cards, as the pod's annotation tells them."""
    text = world.api.pod(name)["metadata"]["annotations"]["bursar.dev/devices"]
    containers = json.loads(text)["containers"]
    return {name: [each["index"] for each in slices] for name, slices in containers.items()}


# S6

PREFERRED = [
    (BINPACK, [20, 40], [30, 50]),
    (SPREAD, [30, 50], [20, 40]),
    (SPREAD, [90], [50, 40]),
    (SPREAD, [100], [50, 50]),
    (SPREAD, [100, 50], [100]),
]


@pytest.mark.parametrize(("policy", "one", "other"), PREFERRED)
def test_policies_prefer_one_node_to_another(policy: Policy, one: list[int], other: list[int]) -> None:
    """By the percents that are free on their cards, for a pod of 10 %."""
    pod = read(percent(10))
    assert pod.request is not None

    scores = FitCache().scored(
        fit_key(pod.request, policy, pod.amounts), with_used(one=one, other=other).nodes, ["one", "other"]
    )[0]

    first, second = ranked(policy, pod.uid, scores, places(["one", "other"]))
    assert first > second


# S16


def shaped(name: str, *groups: int) -> Json:
    """A node of eight cards, four on each socket, linked in groups of these sizes."""
    members = [group for group, size in enumerate(groups) for _ in range(size)]
    return node(
        name,
        *(
            card(
                at,
                numa=at // 4,
                links=[f"{name}-GPU-{other}" for other in range(8) if members[other] == members[at]],
            )
            for at in range(8)
        ),
    )


def test_a_pod_goes_where_its_number_of_cards_is_linked_and_else_to_one_numa_node(running: Stepped) -> None:
    """KubeGPU: A and C are of pairs alone, B has a four."""
    nodes = [shaped("a", 2, 2, 2, 2), shaped("b", 2, 2, 4), shaped("c", 2, 2, 2, 2)]
    linked, beside = near("pair", cards_asked("x", 3)), near("numa", cards_asked("x", 3))
    for raw in nodes:
        running.put_node(raw)

    assert running.filter(linked, "a", "b", "c")["NodeNames"] == ["b"]
    assert cards_of(fit(request_of(linked), rebuilt(nodes, []).node("b"))) == {"x": [4, 5, 6]}
    assert running.filter(beside, "a", "c")["NodeNames"] == ["a", "c"]
    assert cards_of(fit(request_of(beside), rebuilt(nodes, []).node("a"))) == {"x": [0, 1, 2]}


# S19, S36


def test_three_pods_of_five_gigabytes_do_not_fit_on_two_cards_of_eight() -> None:
    """GPU Aware Scheduling: though 6 GB remain on the node."""
    snapshot = rebuilt([node("n", card(0, 8000), card(1, 8000))], [])
    for name in ("first", "second"):
        taken = place(snapshot, mib(5000, name), "n")
        assert taken is not None
        snapshot = pod_updated(snapshot, read(taken))

    assert fit(request_of(mib(5000, "third")), snapshot.node("n")) == Refusal(
        "no card has 5000 MiB free", "full"
    )


def test_small_pods_pack_on_one_card_and_leave_the_other_whole() -> None:
    """Aliyun: three of 2 GiB, then one of a whole card's 16276 MiB."""
    snapshot = rebuilt([equal(2, 16276)], [])
    for name in "abc":
        taken = place(snapshot, mib(2 * GIB, name), "n")
        assert taken is not None
        snapshot = pod_updated(snapshot, read(taken))

    assert cards_of(fit(request_of(mib(16276)), snapshot.node("n"))) == {"main": [1]}
    assert isinstance(
        fit(request_of(mib(16276)), rebuilt([equal(1, 16276)], list(used(2 * GIB))).node("n")), Refusal
    )


def test_three_pods_of_three_gibibytes_are_on_one_card_of_fifteen() -> None:
    snapshot = rebuilt([equal(2, 15 * GIB)], [])
    for name in "abc":
        assert cards_of(fit(request_of(mib(3 * GIB, name)), snapshot.node("n"))) == {"main": [0]}
        taken = place(snapshot, mib(3 * GIB, name), "n")
        assert taken is not None
        snapshot = pod_updated(snapshot, read(taken))


# S33


def test_a_cordoned_card_keeps_its_pods_and_takes_no_new_one_until_the_cordon_is_gone(
    running: Stepped,
) -> None:
    running.put_node(equal(2))
    holder = running.put_pod(percent(30, "holder"))
    assert running.bind(holder, "n") == ""

    running.put_node(equal(2, annotations={"bursar.dev/cordoned-cards": "GPU-0, GPU-1"}))

    waiting = running.put_pod(percent(30, "waiting"))
    every = "every healthy GPU card here is cordoned"
    assert running.filter(waiting, "n")["FailedAndUnresolvableNodes"] == {"n": every}
    assert running.extender.cache.snapshot.allocation("uid-holder") is not None
    assert running.posted()["nodes"]["n"]["cards"][0]["cordoned"] is True
    running.put_node(equal(2, annotations={"bursar.dev/cordoned-cards": "GPU-1"}))
    assert running.bind(waiting, "n") == ""
    assert cards_bound(running, "waiting") == {"main": [0]}


# S43


def test_a_plain_sidecar_changes_no_cards_free_amounts() -> None:
    alone = on(percent(50, "p"), "n", "GPU-0")
    beside = {
        **alone,
        "spec": {**alone["spec"], "containers": [*alone["spec"]["containers"], container("proxy")]},
    }

    assert (
        rebuilt([node("n")], [alone]).node("n").free_by_card
        == rebuilt([node("n")], [beside]).node("n").free_by_card
    )


# S44, S45


def test_two_equal_pods_that_were_filtered_together_get_different_bookings() -> None:
    snapshot = rebuilt([node("n", card(0), card(1))], [])
    first, second = read(percent(60, "first")), read(percent(60, "second"))
    assert first.request is not None
    assert second.request is not None
    assert cards_of(fit(second.request, snapshot.node("n"))) == cards_of(
        fit(first.request, snapshot.node("n"))
    )

    one = fit(first.request, snapshot.node("n"))
    assert not isinstance(one, Refusal)
    snapshot = assume(snapshot, first, "n", one)
    two = fit(second.request, snapshot.node("n"))

    assert cards_of(one) == {"main": [0]}
    assert cards_of(two) == {"main": [1]}


def test_a_failed_bind_leaves_nothing_behind_and_another_node_is_taken() -> None:
    fresh = rebuilt([node("n1"), node("n2")], [percent(100, "p")])
    pod = read(percent(100, "p"))
    assert pod.request is not None
    placement = fit(pod.request, fresh.node("n1"))
    assert not isinstance(placement, Refusal)

    after = forget(assume(fresh, pod, "n1", placement), pod.uid)

    assert after == fresh
    assert not isinstance(fit(pod.request, after.node("n2")), Refusal)


# S46, S47, S48, S49


def test_a_force_deleted_pod_keeps_its_cards_for_its_grace_period_and_no_longer() -> None:
    holder = on(percent(100, "p", terminationGracePeriodSeconds=45), "n", "GPU-0")
    snapshot = rebuilt([node("n")], [holder])

    snapshot = pod_deleted(snapshot, read(holder), now_ms=1_000_000)
    assert isinstance(fit(request_of(percent(1)), expire(snapshot, 1_044_999).node("n")), Refusal)
    assert expire(snapshot, 1_045_000) == rebuilt([node("n")], [])


def test_and_so_does_one_that_the_watch_reports(running: Stepped) -> None:
    running.put_node(node("n"))
    running.put_pod(on(percent(100, "p", terminationGracePeriodSeconds=3), "n", "GPU-0"))

    running.api.delete("pods", "p", "team-a")

    def held() -> str:
        allocation = running.extender.cache.snapshot.allocation("uid-p")
        return allocation.state if allocation else ""

    running.passes(2)
    assert held() == "orphaned"
    assert running.free("n") == [0]
    running.passes(2)
    assert running.free("n") == [1000]


def test_a_restart_counts_those_that_hold_cards_and_no_others() -> None:
    done = bound(percent(100, "done"), "n", None, "Succeeded")
    leaving = on(percent(50, "leaving"), "n", "GPU-1")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"
    elsewhere = on(percent(50, "elsewhere"), "gone", "GPU-0")
    snapshot = rebuilt([node("n", card(0), card(1))], [done, leaving, elsewhere])

    rooms = snapshot.node("n").free_by_card
    assert [room and room.share_milli for room in rooms] == [1000, 500]
    assert snapshot.allocation("uid-elsewhere") is not None
    assert isinstance(fit(request_of(percent(1)), snapshot.node("gone")), Refusal)
    back = node_updated(snapshot, read_node(node("gone")))
    assert back.node("gone").allocations.keys() == {"uid-elsewhere"}


def test_late_events_of_a_pod_do_not_touch_its_successor_of_the_same_name() -> None:
    old = on(percent(40, "web-0"), "n", "GPU-0")
    new = on(percent(30, "web-0"), "n", "GPU-0")
    new["metadata"]["uid"] = "uid-successor"
    snapshot = rebuilt([node("n")], [new])

    late = pod_deleted(snapshot, read({**old, "status": {"phase": "Succeeded"}}), 0)

    assert late == snapshot


def test_capacity_that_shrinks_under_use_leaves_nothing_and_never_less() -> None:
    holder = on(mib(12_000, "p"), "n", "GPU-0")
    snapshot = rebuilt([node("n", card(0, 16_000))], [holder])

    snapshot = node_updated(snapshot, read_node(node("n", card(0, 10_000))))

    assert snapshot.node("n").closed == ""
    assert snapshot.node("n").free_by_card == (Free(1000, 0, 10_000),)
    assert isinstance(fit(request_of(mib(64)), snapshot.node("n")), Refusal)


def test_and_so_filter_says_and_the_map(running: Stepped) -> None:
    running.put_node(node("n", card(0, 16_000)))
    running.put_pod(on(mib(12_000, "user"), "n", "GPU-0"))

    running.put_node(node("n", card(0, 10_000)))

    answer = running.filter(mib(64), "n")
    assert {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]} == {
        "n": "no card has 64 MiB free"
    }
    assert running.posted()["nodes"]["n"]["closed"] == ""


# of other collections


def test_a_tencent_share_needs_its_memory_on_one_card() -> None:
    capacity = {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "64"}
    snapshot = rebuilt([node("n", card(0, 8192), card(1, 8192), capacity=capacity)], [])
    raw = asking(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="33"))
    fitting = asking(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="32"))

    assert fit(request_of(raw), snapshot.node("n")) == Refusal(
        "no card has 50 percent and 8448 MiB free", "full"
    )
    assert cards_of(fit(request_of(fitting), snapshot.node("n"))) == {"main": [0]}
