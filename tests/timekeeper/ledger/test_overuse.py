"""Who is over his memory share for how long, and who is evicted for it: values in, values out."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timekeeper.worlds import gpu_pod
from timekeeper.accounts.budget_history import BudgetEntry, history_of
from timekeeper.accounts.card_use.evictions import (
    FIRST_PAUSE_MS,
    HOUR_MS,
    LONGEST_PAUSE_MS,
    MAX_IN_AN_HOUR,
    MAX_OF_A_NODE,
    RESULTS,
    SPACE_MS,
    EvictionCandidate,
    EvictionDecision,
    EvictionHistory,
    candidate,
    due,
)
from timekeeper.accounts.card_use.figures import CardSample, MeasuredSession, MemoryExcess, UsageSample
from timekeeper.accounts.card_use.overuse import (
    FRESH_MS,
    ObservedExcess,
    OverusePeriod,
    OverusingPod,
    follow,
)
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.core.kube.eviction import EvictionResult
from timekeeper.core.ledger.hold import PodHold

SECOND, MINUTE = 1_000, 60_000
T0 = 1_795_168_800_000
STEP = 15 * SECOND
NOTHING = EvictionHistory(T0 - HOUR_MS)


def placed(**shares_mib: int) -> dict[str, MeasuredSession]:
    """A pod ``p`` with so many MiB on each card."""
    cards = [
        {"uuid": uuid, "index": 0, "share_milli": 100, "memory_mib": mib} for uuid, mib in shares_mib.items()
    ]
    devices = json.dumps({"version": 1, "containers": {"main": cards}})
    return {"p": MeasuredSession("p", T0, None, devices, 1_000)}


def look(**memory_mib: int | None) -> UsageSample:
    """Of the pod's cards; None: the card told nothing."""
    figures = tuple(CardSample(uuid, 0, mib, exclusive=True) for uuid, mib in memory_mib.items())
    return UsageSample(0, (("p", figures),), ())


ELSEWHERE = UsageSample(0, (), ())  # the pod is not in it


def followed(*looks: tuple[int, UsageSample], **shares_mib: int) -> OverusePeriod | None:
    """The pod's episode after looks at so many ms after T0."""
    held = placed(**(shares_mib or {"A": 10}))
    return follow({}, [(T0 + at_ms, each) for at_ms, each in looks], held).get("p")


def seen(uuid: str, memory_mib: int, at_ms: int, share_mib: int = 10) -> ObservedExcess:
    return ObservedExcess(MemoryExcess(uuid, memory_mib, share_mib), T0 + at_ms)


# For how long.


def test_an_episode_begins_with_the_first_look_that_sees_the_pod_over_its_share() -> None:
    assert followed((0, look(A=10)), (STEP, look(A=11)), (2 * STEP, look(A=12))) == OverusePeriod(
        T0 + STEP, (seen("A", 12, 2 * STEP),)
    )


def test_one_look_within_the_share_ends_it_also_between_two_that_are_over() -> None:
    assert followed((0, look(A=11)), (STEP, look(A=10)), (2 * STEP, look(A=11))) == OverusePeriod(
        T0 + 2 * STEP, (seen("A", 11, 2 * STEP),)
    )
    assert followed((0, look(A=11)), (STEP, look(A=10))) is None


@pytest.mark.parametrize("nothing", [look(A=None), look(), ELSEWHERE], ids=["null", "no card", "no pod"])
def test_a_look_that_reports_nothing_neither_ends_an_episode_nor_goes_on_with_it(
    nothing: UsageSample,
) -> None:
    assert followed((0, look(A=11)), (STEP, nothing)) == OverusePeriod(T0, (seen("A", 11, 0),))
    assert followed((0, look(A=11)), (STEP, nothing), (2 * STEP, look(A=12))) == OverusePeriod(
        T0, (seen("A", 12, 2 * STEP),)
    )


@pytest.mark.parametrize("nothing", [look(A=None), ELSEWHERE], ids=["null", "no pod"])
def test_what_no_look_has_seen_for_long_is_forgotten(nothing: UsageSample) -> None:
    assert followed((0, look(A=11)), (FRESH_MS, nothing)) is not None
    assert followed((0, look(A=11)), (FRESH_MS + 1, nothing)) is None


def test_a_node_that_was_silent_for_long_begins_anew() -> None:
    assert followed((0, look(A=11)), (FRESH_MS, look(A=11))) == OverusePeriod(T0, (seen("A", 11, FRESH_MS),))
    later = FRESH_MS + 1
    assert followed((0, look(A=11)), (later, look(A=11))) == OverusePeriod(
        T0 + later, (seen("A", 11, later),)
    )


def test_a_pod_that_is_over_on_one_card_after_the_other_was_over_all_the_time() -> None:
    shares = {"A": 10, "B": 10}

    assert followed((0, look(A=11, B=1)), (STEP, look(A=1, B=11)), **shares) == OverusePeriod(
        T0, (seen("B", 11, STEP),)
    )
    assert followed((0, look(A=11, B=12)), (STEP, look(A=None, B=1)), **shares) == OverusePeriod(
        T0, (seen("A", 11, 0),)
    )


def test_a_pod_that_holds_nothing_on_the_node_is_over_nothing() -> None:
    over = follow({}, [(T0, look(A=11))], placed(A=10))

    assert follow(over, [(T0 + STEP, look(A=11))], {}) == {}
    without = replace(placed()["p"], devices="")
    assert follow({}, [(T0, look(A=11))], {"p": without}) == {}


def test_looks_from_before_a_pod_had_its_cards_put_it_into_no_earlier_overuse() -> None:
    """A node's first post may reach back for a month."""
    earlier = [(T0 - each * MINUTE, look(A=11)) for each in (60, 2, 1)]

    assert follow({}, earlier, placed(A=10)) == {}
    assert follow({}, [*earlier, (T0, look(A=11))], placed(A=10))["p"].since_ms == T0


@pytest.mark.parametrize(
    ("shares_milli", "is_over"), [((1_000,), False), ((500, 500), False), ((999,), True), ((500, 400), True)]
)
def test_a_pod_with_a_whole_card_exceeds_nothing_on_it(shares_milli: tuple[int, ...], is_over: bool) -> None:
    """By one container or by several of one pod."""
    containers = {
        f"c{index}": [{"uuid": "A", "index": 0, "share_milli": milli, "memory_mib": 10}]
        for index, milli in enumerate(shares_milli)
    }
    devices = json.dumps({"version": 1, "containers": containers})
    held = {"p": replace(placed()["p"], devices=devices)}

    assert bool(follow({}, [(T0, look(A=10 * len(shares_milli) + 1))], held)) is is_over


LOOKS = st.lists(
    st.tuples(st.integers(1, 3 * FRESH_MS // 2), st.sampled_from([9, 10, 11, 12, None])), max_size=12
)


@given(LOOKS)
def test_an_episode_is_what_a_slow_reading_of_all_looks_finds(steps: list[tuple[int, int | None]]) -> None:
    at_ms, looks = 0, []
    for step_ms, mib in steps:
        at_ms += step_ms
        looks.append((at_ms, mib))

    found = followed(*((at, look(A=mib)) for at, mib in looks))

    assert (found and (found.since_ms - T0, found.seen_ms - T0)) == slowly(looks)


def slowly(looks: list[tuple[int, int | None]]) -> tuple[int, int] | None:
    """From the last look backwards: those that tell, without a gap, until one is within."""
    run: list[int] = []
    until = looks[-1][0] if looks else 0
    for at, mib in reversed(looks):
        if mib is None:
            continue
        if mib <= 10 or until - at > FRESH_MS:
            break
        run.append(at)
        until = at
    return (run[-1], run[0]) if run else None


@given(LOOKS, st.integers(0, 12))
def test_it_does_not_matter_how_looks_come_together(steps: list[tuple[int, int | None]], cut: int) -> None:
    at_ms, looks = T0, []
    for step_ms, mib in steps:
        at_ms += step_ms
        looks.append((at_ms, look(A=mib)))
    held = placed(A=10)

    assert follow(follow({}, looks[:cut], held), looks[cut:], held) == follow({}, looks, held)


# Who leaves.

POD = cast(LedgerPod, read_pod(gpu_pod(started_ms=T0)))


@pytest.mark.parametrize(
    ("other", "may"),
    [
        ({}, True),
        ({"node": "n2"}, False),
        ({"hold": PodHold(T0, over=True, ended_ms=T0)}, False),
        ({"hold": PodHold(T0, deletion_ms=T0)}, False),
        ({"others_ended": True}, False),
    ],
    ids=["runs", "elsewhere", "has ended", "is about to go", "all but its sidecar has ended"],
)
def test_a_pod_may_be_evicted_while_it_runs_on_the_node_that_reports(
    other: dict[str, Any], may: bool
) -> None:
    made = candidate(suspect().over, replace(POD, **other), history_of([]), T0)

    assert (made.pod is not None) is may
    assert candidate(suspect().over, None, history_of([]), T0).pod is None


def suspect(
    uid: str = "p",
    *,
    since_ms: int = T0 - 10 * MINUTE,
    seen_ms: int = T0,
    grace_ms: int | None = 10 * MINUTE,
    evictable: bool = True,
    node: str = "n1",
) -> EvictionCandidate:
    episode = OverusePeriod(since_ms, (ObservedExcess(MemoryExcess("A", 11, 10), seen_ms),))
    return EvictionCandidate(
        OverusingPod(uid, "team-a", uid, node, episode), grace_ms, POD if evictable else None
    )


def decided(suspects: Iterable[EvictionCandidate], past: EvictionHistory, now_ms: int) -> EvictionDecision:
    """Where both clocks go alike."""
    return due(suspects, past, now_ms, now_ms)


@pytest.mark.parametrize(
    ("one", "chosen"),
    [
        (suspect(), True),
        (suspect(grace_ms=0, since_ms=T0), True),
        (suspect(since_ms=T0 - 10 * MINUTE + 1), False),
        (suspect(seen_ms=T0 - 1), False),
        (suspect(since_ms=T0 - HOUR_MS, seen_ms=T0 - FRESH_MS + 1), True),
        (suspect(since_ms=T0 - HOUR_MS, seen_ms=T0 - FRESH_MS), False),
        (suspect(since_ms=T0, seen_ms=T0 + HOUR_MS), False),
        (suspect(grace_ms=None), False),
        (suspect(evictable=False), False),
    ],
    ids=[
        "over for its whole grace",
        "without a grace, at the first look",
        "over for less",
        "grace has passed, and no look has seen its end",
        "seen a little while ago",
        "seen too long ago",
        "seen in a future that a clock set back has made",
        "in a namespace that observes",
        "gone, ended or about to go",
    ],
)
def test_a_pod_leaves_when_looks_saw_it_over_its_share_through_all_its_grace(
    one: EvictionCandidate, chosen: bool
) -> None:
    assert decided([one], NOTHING, T0) == EvictionDecision(one if chosen else None, 0)


def test_the_pod_that_has_exceeded_for_longest_goes_first() -> None:
    old, older = suspect("a"), suspect("b", since_ms=T0 - 11 * MINUTE)

    assert decided([old, older, suspect("c", grace_ms=None)], NOTHING, T0) == EvictionDecision(older, 1)


def test_between_two_evictions_and_after_a_start_there_is_time() -> None:
    begun = EvictionHistory(T0 - SPACE_MS + 1)
    past = NOTHING.after("other", "n1", "evicted", T0 - SPACE_MS + 1)

    assert decided([suspect()], begun, T0) == EvictionDecision(None, 1)
    assert decided([suspect()], past, T0) == EvictionDecision(None, 1)
    assert (
        decided([suspect()], NOTHING.after("other", "n1", "evicted", T0 - SPACE_MS), T0).chosen == suspect()
    )


@pytest.mark.parametrize(
    ("result", "chosen"),
    [("evicted", False), ("unclear", False), ("gone", True), ("protected", True), ("refused", True)],
)
def test_an_attempt_without_an_eviction_takes_no_turn(result: EvictionResult, chosen: bool) -> None:
    verdict = decided([suspect()], NOTHING.after("other", "n1", result, T0), T0)

    assert verdict == (EvictionDecision(suspect(), 0) if chosen else EvictionDecision(None, 1))


def test_a_pod_that_was_evicted_is_not_evicted_again_soon_though_nothing_shows_that_it_goes() -> None:
    past, later_ms = NOTHING.after("p", "n1", "evicted", T0), T0 + LONGEST_PAUSE_MS

    assert decided([suspect(seen_ms=later_ms - 1)], past, later_ms - 1) == EvictionDecision(None, 0)
    assert decided([suspect(seen_ms=later_ms)], past, later_ms).chosen is not None


def test_evictions_in_an_hour_are_limited() -> None:
    past = NOTHING
    for number in range(MAX_IN_AN_HOUR):
        past = past.after(f"p{number}", f"n{number % 3}", "evicted", T0 - HOUR_MS + 1 + number * SPACE_MS)

    assert decided([suspect(node="n4")], past, T0) == EvictionDecision(None, 1)
    assert decided([suspect(seen_ms=T0 + 1, node="n4")], past, T0 + 1).chosen is not None


def test_one_node_alone_does_not_use_up_all_evictions_of_an_hour() -> None:
    past = NOTHING
    for number in range(MAX_OF_A_NODE):
        past = past.after(f"p{number}", "n1", "evicted", T0 - HOUR_MS + 1 + number * SPACE_MS)
    one, other = suspect("a", since_ms=T0 - HOUR_MS), suspect("b", node="n2")

    assert decided([one], past, T0) == EvictionDecision(None, 1)
    assert decided([one, other], past, T0) == EvictionDecision(other, 1)
    assert decided([replace(one, over=suspect("a", seen_ms=T0 + 1).over)], past, T0 + 1).chosen is not None


def test_a_clock_that_jumps_makes_no_time_pass_between_evictions() -> None:
    past, later_ms = NOTHING.after("other", "n1", "evicted", T0), T0 + 2 * HOUR_MS
    late = suspect(since_ms=later_ms - HOUR_MS, seen_ms=later_ms)

    assert due([late], past, later_ms, T0 + SPACE_MS - 1) == EvictionDecision(None, 1)
    assert due([late], past, later_ms, T0 + SPACE_MS).chosen == late


def test_one_pod_is_tried_more_and_more_seldom() -> None:
    past, at_ms, pauses = NOTHING, T0, []
    for _ in range(8):
        past, began_ms = past.after("p", "n1", "protected", at_ms), at_ms
        while past.is_paused("p", at_ms):
            at_ms += SECOND
        pauses.append(at_ms - began_ms)

    assert pauses[:3] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]
    assert set(pauses[5:]) == {LONGEST_PAUSE_MS}
    assert decided([suspect("other")], past, T0).chosen == suspect("other")


def test_what_is_long_past_is_forgotten() -> None:
    past = NOTHING.after("p", "n1", "evicted", T0).after("q", "n1", "gone", T0 + HOUR_MS)

    assert (past.evicted, list(past.attempts)) == ((), ["q"])


@pytest.mark.untraced
def test_wrong_figures_everywhere_cannot_empty_a_cluster() -> None:
    """A thousand pods are over at once and for ever: whatever the moments at which somebody looks."""
    chance = random.Random(7)
    past, now_ms, left = EvictionHistory(T0), T0, list[int]()
    there = [f"p{number}" for number in range(1_000)]
    while now_ms < T0 + 3 * HOUR_MS:
        now_ms += chance.choice((1, 500, SECOND, 5 * SECOND))
        verdict = decided(everybody(there[:50], now_ms), past, now_ms)
        if verdict.chosen:
            over = verdict.chosen.over
            there.remove(over.uid)
            past = past.after(over.uid, over.node, "evicted", now_ms)
            left.append(now_ms)

    assert min(after - before for before, after in pairwise(left)) >= SPACE_MS
    assert len(left) == 3 * MAX_IN_AN_HOUR
    assert max(sum(at <= each < at + HOUR_MS for each in left) for at in left) == MAX_IN_AN_HOUR


def everybody(uids: list[str], now_ms: int) -> Iterator[EvictionCandidate]:
    return (suspect(uid, since_ms=T0 - HOUR_MS, seen_ms=now_ms, node=f"n{int(uid[1:]) % 4}") for uid in uids)


SUSPECTS = st.lists(
    st.builds(
        suspect,
        st.sampled_from("abcdefgh"),
        since_ms=st.integers(T0 - 12 * MINUTE, T0),
        seen_ms=st.integers(T0 - 3 * MINUTE, T0 + 3 * MINUTE),
        grace_ms=st.sampled_from([None, 0, MINUTE, 10 * MINUTE]),
        evictable=st.booleans(),
    ),
    unique_by=lambda each: each.over.uid,
)
ATTEMPTS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(RESULTS), st.integers(T0 - 20 * MINUTE, T0)),
    max_size=4,
)


@given(SUSPECTS, ATTEMPTS)
def test_only_due_pods_leave_and_each_due_pod_leaves_or_waits(
    suspects: list[EvictionCandidate], attempts: list[tuple[str, EvictionResult, int]]
) -> None:
    past = NOTHING
    for uid, result, at_ms in sorted(attempts, key=lambda each: each[2]):
        past = past.after(uid, "n1", result, at_ms)

    verdict = decided(suspects, past, T0)

    resting = {uid for uid, _, _ in attempts if is_paused(uid, attempts)}
    leaving = {
        (each.over.episode.since_ms, each.over.uid)
        for each in suspects
        if each.pod is not None
        and each.grace_ms is not None
        and each.over.uid not in resting
        and each.over.episode.since_ms + each.grace_ms <= each.over.episode.seen_ms
        and T0 - FRESH_MS < each.over.episode.seen_ms < T0 + FRESH_MS
    }
    lately = any(result in ("evicted", "unclear") and T0 - at_ms < SPACE_MS for _, result, at_ms in attempts)
    if lately or not leaving:
        assert verdict == EvictionDecision(None, len(leaving))
    else:
        assert verdict.chosen is not None
        assert (verdict.chosen.over.uid, verdict.held_back) == (min(leaving)[1], len(leaving) - 1)


def is_paused(uid: str, attempts: list[tuple[str, EvictionResult, int]]) -> bool:
    """After the first attempt for 30 s, and each time for twice as long; for 10 minutes after an eviction."""
    mine = sorted(
        ((at_ms, result) for each, result, at_ms in attempts if each == uid), key=lambda each: each[0]
    )
    at_ms, result = mine[-1]
    pause_s = 600 if result == "evicted" else [30, 60, 120, 240][len(mine) - 1]
    return T0 - at_ms < pause_s * SECOND


# Whose budget says so.


@pytest.mark.parametrize(
    ("entries", "grace_ms"),
    [
        ({}, None),
        ({"_settings": "overuse: observe\noveruseGrace: 1m"}, None),
        ({"_settings": "overuse: evict"}, 10 * MINUTE),
        ({"_settings": "overuse: evict\noveruseGrace: 1m"}, MINUTE),
        ({"_settings": "overuse: evict\nmode: observe"}, None),
        ({"_defaults": "overuse: evict"}, 10 * MINUTE),
        ({"_defaults": "overuse: evict\noveruseGrace: 2m", "_settings": "overuseGrace: 1m"}, 2 * MINUTE),
        ({"_defaults": "overuse: evict\nmode: observe"}, None),
        ({"team-a": "overuse: evict\noveruseGrace: 0s"}, 0),
        ({"team-a": "overuse: evict", "_defaults": "overuseGrace: 3m"}, 3 * MINUTE),
        ({"team-a": "overuse: observe", "_defaults": "overuse: evict"}, None),
        ({"team-a": "overuseGrace: 1m", "_settings": "overuse: evict"}, MINUTE),
        ({"team-a": "mode: observe", "_settings": "overuse: evict"}, None),
        ({"team-a": "mode: enforce", "_settings": "overuse: evict\nmode: observe"}, 10 * MINUTE),
        ({"team-b": "overuse: evict"}, None),
    ],
)
def test_the_namespaces_own_word_counts_before_the_defaults_and_the_clusters(
    entries: dict[str, str], grace_ms: int | None
) -> None:
    texts = {key: f"gpuHours: 1\n{text}" if key != "_settings" else text for key, text in entries.items()}
    history = history_of([BudgetEntry(key, text, T0) for key, text in texts.items()])

    assert history.unreadable_entries == ()
    assert history.overuse_grace_ms("team-a", T0) == grace_ms
    assert history.overuse_grace_ms("team-a", T0 - 1) is None
