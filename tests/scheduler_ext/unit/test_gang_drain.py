"""Cards to keep empty for a gang: those with which it starts soonest, by an oracle that only counts; and no
pod that passes delays it as long as it keeps the time that it declares."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal, not_enough_free
from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.drain_choice import Chosen, choose
from scheduler_ext.gangs.plan import plan
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.drains import LATE_MS, Drain, beside_drain
from scheduler_ext.snapshot.node_info import is_emptier
from scheduler_ext.snapshot.snapshot import Snapshot, assume, drain, expire, pod_updated, release, undrain
from scheduler_ext.verbs.drained import DrainedFits, beside_drained
from scheduler_ext.verbs.fit_cache import FilterResult, fit_key
from scheduler_ext.waiting.order import first_that_fits, waiting_pod
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.worlds import node, on, percent, read, rebuilt
from tests.support.profile import examples
from tests.worlds import Json, card
from timekeeper.core.standings import Cap, Caps

NOW = 1_795_000_000_000
MINUTE = 60_000
UNTIL = NOW + 15 * MINUTE
GANG = {"bursar.dev/gang": "g", "bursar.dev/held": "turn"}


def member(at: int, size: int, topology: str = "") -> Json:
    near = {"bursar.dev/gang-topology": topology} if topology else {}
    return percent(100, f"m{at}", annotations={**GANG, "bursar.dev/gang-size": str(size), **near})


def held(name: str, where: str, at: int, ends_ms: int = 0, kind: str = "") -> Json:
    """A pod on a card. ``ends_ms``: when its declared time and grace period are over, 0: it declares none."""
    fields: Json = {"terminationGracePeriodSeconds": 0}
    if ends_ms:
        fields["activeDeadlineSeconds"] = (ends_ms - NOW) // 1000 + 600
    raw = on(percent(100, name, **fields), where, f"{where}-GPU-{at}")
    raw["status"]["startTime"] = stamp(NOW - 600_000)
    if kind:
        raw["metadata"]["ownerReferences"] = [{"controller": True, "kind": kind, "name": "o", "uid": "u"}]
    return raw


def cluster(cards: Mapping[str, int], pods: Sequence[Json], size: int, topology: str = "") -> Snapshot:
    """Nodes with so many cards, these pods on them, and a gang that waits. A rack is its first letter."""
    nodes = [node(name, *(card(at) for at in range(count))) for name, count in cards.items()]
    for raw in nodes:
        raw["metadata"]["labels"] = {"rack": raw["metadata"]["name"][0]}
    return rebuilt(nodes, [*pods, *(member(at, size, topology) for at in range(size))], NOW)


def members(snapshot: Snapshot) -> list[Pod]:
    return sorted((pod for _, pod in snapshot.pods.items() if pod.gang is not None), key=lambda pod: pod.uid)


def planned(snapshot: Snapshot, standings: NamespaceStandings = UNHEARD) -> PlanInput:
    return PlanInput(snapshot, standings, lambda _: BINPACK)


def chosen(snapshot: Snapshot, standings: NamespaceStandings = UNHEARD) -> Chosen | None:
    return choose(members(snapshot), planned(snapshot, standings), UNTIL, NOW)


def nodes_of(found: Chosen | None) -> dict[str, int]:
    """How many cards are kept on each node."""
    return {} if found is None else {name: len(cards) for name, cards in found.cards}


def begun(snapshot: Snapshot, found: Chosen) -> Snapshot:
    """The snapshot with these cards kept."""
    first = members(snapshot)[0]
    assert first.gang is not None
    wanted = Drain("team-a", first.gang.key, "g", found.starts_ms, UNTIL, found.cards)
    return drain(snapshot, wanted)


busy = st.one_of(st.none(), st.just(0), st.integers(1, 20).map(lambda minutes: NOW + minutes * MINUTE))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.lists(busy, min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 8))
def test_the_expected_start_is_when_first_in_first_out_would_start_it(
    cards: list[list[int | None]], size: int
) -> None:
    """With no pod after it: at the first end at which as many cards are free as it has pods."""
    pods = [
        held(f"p{at}-{index}", f"n{at}", index, ends)
        for at, each in enumerate(cards)
        for index, ends in enumerate(each)
        if ends is not None
    ]
    every = [ends for each in cards for ends in each]
    ends = sorted({each for each in every if each and each <= UNTIL})
    free = {at: sum(each is None or 0 < each <= at for each in every) for at in [NOW, *ends]}
    snapshot = cluster({f"n{at}": len(each) for at, each in enumerate(cards)}, pods, size)
    if free[NOW] >= size:
        return  # it needs no drain

    found = chosen(snapshot)

    if size > len(every):
        assert found is None
        return
    assert found is not None
    assert found.starts_ms == next((at for at in ends if free[at] >= size), 0)
    kept = {uuid for _, each in found.cards for uuid in each}
    if found.starts_ms:  # enough of the cards that it keeps are free by then
        there = {
            f"n{at}-GPU-{index}": ends for at, each in enumerate(cards) for index, ends in enumerate(each)
        }
        assert sum(is_free(there[each], found.starts_ms) for each in kept) >= size
    else:
        assert len(kept) >= size


def is_free(ends_ms: int | None, at_ms: int) -> bool:
    """Whether the card has no pod then; None: it never had one."""
    return ends_ms is None or 0 < ends_ms <= at_ms


USED = {"a": 1, "b": 2, "c": 1, "d": 1, "e": 2, "f": 4, "g": 4}


def on_cards(used: Mapping[str, int]) -> list[Json]:
    """Pods that declare no end, on so many cards of each node."""
    return [held(f"{name}{at}", name, at) for name, count in used.items() for at in range(count)]


@pytest.mark.parametrize(
    ("cards", "pods", "size", "kept"),
    [
        # fifteen are asked for and thirteen are free: two are missing, and five nodes have seven in use
        (dict.fromkeys(USED, 4), on_cards(USED), 15, dict.fromkeys("abcdef", 4)),
        # until two more pods end as they declare, four of 19 are missing
        (
            dict.fromkeys("abcdefgh", 4),
            [*on_cards(USED), *(held(f"h{at}", "h", at, NOW + MINUTE) for at in range(2))],
            19,
            dict.fromkeys("abcdefgh", 4),
        ),
        # three of the six are in use, and any other of the node may become free instead
        ({"a": 8}, on_cards({"a": 3}), 6, {"a": 8}),
        ({"a": 4, "b": 2}, [held("b", "b", 0), held("a", "a", 3)], 5, {"a": 4, "b": 2}),
        ({"a": 4, "b": 2}, on_cards({"b": 1}), 6, {"a": 4, "b": 2}),
        # the pod of a StatefulSet never ends
        ({"a": 4, "b": 4}, [held("s", "a", 0, kind="StatefulSet"), *on_cards({"b": 3})], 4, {"b": 4}),
    ],
    ids=["four times as many", "one declares its end", "any of a node", "two nodes", "enough", "endless"],
)
def test_the_emptiest_nodes_are_drained_of_four_times_the_missing_cards(
    cards: dict[str, int], pods: list[Json], size: int, kept: dict[str, int]
) -> None:
    found = chosen(cluster(cards, pods, size))

    assert nodes_of(found) == kept
    assert found is not None
    assert found.starts_ms == 0


def test_the_drain_is_in_one_rack_where_the_gang_is_to_be() -> None:
    pods = [held("a0", "a1", 0), held("a1", "a2", 0), held("b0", "b1", 0), held("b1", "b1", 1)]
    cards = {"a1": 1, "a2": 1, "b1": 2}

    assert nodes_of(chosen(cluster(cards, pods, 2, "rack"))) in ({"a1": 1, "a2": 1}, {"b1": 2})
    assert nodes_of(chosen(cluster(cards, pods, 2))) == cards
    pods[2:] = [held("b0", "b1", 0, NOW + MINUTE), held("b1", "b1", 1, NOW + 2 * MINUTE)]
    found = chosen(cluster(cards, pods, 2, "rack"))
    assert found == Chosen((("b1", ("b1-GPU-0", "b1-GPU-1")),), NOW + 2 * MINUTE)


def test_nothing_is_drained_for_a_gang_that_a_cap_keeps_waiting() -> None:
    pods = [held(f"a{at}", "a", at, NOW + MINUTE) for at in range(4)]
    snapshot = cluster({"a": 4}, pods, 4)
    namespace = snapshot.pods.get("uid-m0")
    assert namespace is not None
    caps = NamespaceStanding("IN_BUDGET", caps=Caps(own=Cap(total_milli=6_000)))
    capped = NamespaceStandings({namespace.namespace: caps})

    assert chosen(snapshot, capped) is None
    assert chosen(snapshot) is not None


def test_a_pod_that_runs_on_after_its_time_has_no_known_end() -> None:
    found = chosen(cluster({"a": 1}, [held("a", "a", 0, NOW - MINUTE)], 1))

    assert found == Chosen((("a", ("a-GPU-0",)),), 0)


def test_a_drain_takes_nothing_that_a_cap_or_kube_scheduler_counts() -> None:
    snapshot = cluster({"a": 2}, [held("a", "a", 0)], 2)
    found = chosen(snapshot)
    assert found is not None

    after = begun(snapshot, found)

    assert [each.share_milli for each in after.node("a").free_by_card if each] == [0, 0]
    assert after.held == snapshot.held
    assert (after.node("a").left, after.node("a").cpu_left) == (
        snapshot.node("a").left,
        snapshot.node("a").cpu_left,
    )
    assert after.unsure == snapshot.unsure
    assert undrain(after) == snapshot
    assert expire(after, UNTIL - 1).drain is not None
    assert expire(after, UNTIL) == snapshot


def passing(at: int, seconds: int) -> Pod:
    """A single pod that declares this time, grace period and all."""
    return read(percent(100, f"s{at}", activeDeadlineSeconds=seconds, terminationGracePeriodSeconds=0))


@pytest.mark.parametrize(("seconds", "passes"), [(290, True), (291, False)])
def test_a_pod_passes_if_it_declares_to_end_before_the_expected_start(seconds: int, passes: bool) -> None:
    """With ten seconds to spare, for the kubelet starts it later."""
    snapshot = cluster({"a": 2}, [held("a", "a", 0, NOW + 5 * MINUTE)], 2)
    found = chosen(snapshot)
    assert found is not None
    there = begun(snapshot, found).node("a")

    pod = passing(0, seconds)
    request = pod.request
    assert request is not None
    assert isinstance(fit(request, beside_drain(pod, there, NOW), BINPACK), Refusal) is not passes
    undeclared = structs.replace(pod, declared_ms=0)
    assert beside_drain(undeclared, there, NOW) is there
    assert LATE_MS == 10_000


def test_of_the_pods_that_wait_one_that_may_pass_is_woken_for_a_card_that_is_kept() -> None:
    """Also behind one that asks the same and may not."""
    snapshot = cluster({"a": 2}, [held("a", "a", 0, NOW + 5 * MINUTE)], 2)
    found = chosen(snapshot)
    assert found is not None
    there = begun(snapshot, found).node("a")
    waiting = [waiting_pod(passing(at, seconds), BINPACK, ["a"]) for at, seconds in enumerate((600, 60))]

    assert first_that_fits(there, waiting, lambda _: Steps(), NOW) is waiting[1]
    assert first_that_fits(there, waiting, lambda _: Steps()) is None
    assert is_emptier(begun(undrain(snapshot), found).node("a"), begun(full(snapshot), found).node("a"))


def full(snapshot: Snapshot) -> Snapshot:
    """The snapshot with a pod on each of the two cards."""
    return pod_updated(snapshot, read(held("b", "a", 1)))


@settings(max_examples=examples(40), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 6), st.booleans())
def test_no_pod_that_keeps_its_declared_time_delays_the_expected_start(
    chance: random.Random, size: int, ends_early: bool
) -> None:
    """Single pods keep coming until then, and take whatever they are offered."""
    cards = {name: chance.randint(1, 4) for name in ("a", "b", "c")}
    pods = [
        held(f"{name}{at}", name, at, NOW + chance.randint(1, 14) * MINUTE)
        for name, count in cards.items()
        for at in range(count)
    ]
    if sum(cards.values()) < size:
        return
    snapshot = cluster(cards, pods, size)
    found = chosen(snapshot)
    assert found is not None
    assert found.starts_ms
    ends = {f"uid-{raw['metadata']['name']}": end_of(raw) for raw in pods}
    snapshot, number = begun(snapshot, found), 0
    for now_ms in range(NOW, found.starts_ms, 20_000):
        snapshot = without_ended(snapshot, ends, now_ms)
        for _ in range(3):
            number += 1
            pod = passing(number, chance.choice((30, 60, 200, 400, 5_000)))
            where = offered(snapshot, pod, now_ms)
            if where is not None:
                snapshot = where
                ran_ms = pod.declared_ms // (chance.randint(1, 3) if ends_early else 1)
                ends[pod.uid] = now_ms + ran_ms

    snapshot = without_ended(snapshot, ends, found.starts_ms)
    waiting = members(snapshot)
    assert plan(waiting, planned(snapshot)).suffices(len(waiting))


def end_of(raw: Json) -> int:
    pod = read(raw)
    return pod.started_ms + pod.declared_ms


def without_ended(snapshot: Snapshot, ends: dict[str, int], now_ms: int) -> Snapshot:
    for uid in [uid for uid, end_ms in ends.items() if end_ms <= now_ms]:
        snapshot = release(snapshot, uid)
        snapshot = replace(snapshot, pods=snapshot.pods.without(uid))
        del ends[uid]
    return snapshot


def offered(snapshot: Snapshot, pod: Pod, now_ms: int) -> Snapshot | None:
    """The snapshot with the pod on the first node that it is offered."""
    for name, there in snapshot.nodes.items():
        assert pod.request is not None
        placement = fit(pod.request, beside_drain(pod, there, now_ms), BINPACK)
        if not isinstance(placement, Refusal):
            return assume(pod_updated(snapshot, pod, now_ms), pod, name, placement)
    return None


def test_what_is_remembered_of_a_drains_nodes_holds_only_while_these_stay_the_same() -> None:
    snapshot = cluster({"a": 2, "b": 2}, [held("a", "a", 0, NOW + 5 * MINUTE)], 4)
    found = chosen(snapshot)
    assert found is not None
    drained = begun(snapshot, found)
    pods = [read(percent(100, name)) for name in ("one", "two", "three")]
    request = pods[0].request
    assert request is not None
    key, no_room = fit_key(request, BINPACK, pods[0].amounts), not_enough_free(request)
    looks, none = DrainedFits(), FilterResult([], {}, {"a": no_room, "b": no_room})

    def beside(snapshot: Snapshot, result: FilterResult = none) -> FilterResult:
        return beside_drained(result, pods[0], key, snapshot, NOW, looks)

    kept = beside(drained)
    assert {why.kind for why in kept.refused.values()} == {"drained"}
    assert beside(drained, FilterResult([], {}, {**none.refused, "c": no_room})).refused.keys() == {*"abc"}
    assert beside(drained) == kept
    assert drained.drain is not None
    less = drain(snapshot, replace(drained.drain, cards=drained.drain.cards[:1]))
    assert sorted(why.kind for why in beside(less).refused.values()) == ["drained", "full"]
    after = drained
    for pod, node_name, uuid in zip(pods, "abb", ("a-GPU-1", "b-GPU-0", "b-GPU-1"), strict=True):
        assert beside(after).refused.keys() == kept.refused.keys()
        after = pod_updated(after, read(on(percent(100, pod.name), node_name, uuid)), NOW)
    assert beside(after) is none
