"""The cool-down: nothing is driven out over and over."""

import pytest

from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.cooldown import (
    AGAIN_MS,
    BACK_MS,
    MAX_UNUSED,
    NODE_MS,
    NOTHING_DONE,
    REPLACEMENT_MS,
    SEEN_LEAVING_MS,
    Cooldown,
)
from scheduler_ext.snapshot.snapshot import Snapshot
from tests.scheduler_ext.preemption_worlds import IN, NOW_MS, OVER, at, cards, chosen, names_of, of, standing
from tests.scheduler_ext.worlds import Json, on, percent, read

LATER_MS = NODE_MS
MADE = {"before": "2027-01-15T07:59:00Z", "after": "2027-01-15T08:00:00Z"}  # NOW_MS is 08:00:00


def made(raw: Json, when: str) -> Json:
    """The pod created before or after the eviction."""
    return {**raw, "metadata": raw["metadata"] | {"creationTimestamp": MADE[when]}}


def evicted(victim: Json, beneficiary: Json) -> Cooldown:
    """One eviction, now."""
    return NOTHING_DONE.after(read(victim), read(beneficiary), NOW_MS)


def asked(
    waiting: Json,
    snapshot: Snapshot,
    cooldown: Cooldown,
    after_ms: int,
    standings: NamespaceStandings | None = None,
) -> list[str] | None:
    """Who is chosen so long after the eviction."""
    context = at(snapshot, standings or standing(), cooldown=cooldown, now_ms=NOW_MS + after_ms)
    return names_of(chosen(read(waiting), snapshot, context))


def user(name: str = "user", owner: str = "", when: str = "before", **fields: object) -> Json:
    """A pod on 60 % of the card, of the team that has to give way."""
    return of(made(on(percent(60, name, **fields), "n", "GPU-0"), when), "team-b", owner)


def test_after_an_unused_eviction_no_pod_is_evicted_for_that_request_of_that_namespace_for_a_while() -> None:
    waiting = percent(60, "waiting", priority=5)
    cooldown = evicted(user("gone"), waiting).after_unused(read(waiting), NOW_MS)
    snapshot = cards(1, user())
    renewed, other = percent(60, "renewed", priority=5), percent(61, "other", priority=5)

    for pod in (waiting, renewed):
        assert asked(pod, snapshot, cooldown, AGAIN_MS - 1) is None
        assert asked(pod, snapshot, cooldown, AGAIN_MS) == ["user"]
    assert asked(other, snapshot, cooldown, LATER_MS) == ["user"]
    assert asked(of(renewed, "team-c"), snapshot, cooldown, LATER_MS) == ["user"]


def test_a_namespace_with_ever_new_requests_evicts_without_use_a_bounded_number_of_times() -> None:
    snapshot, cooldown = cards(1, user()), NOTHING_DONE
    waiting = [percent(61 + n, f"w{n}", priority=5) for n in range(MAX_UNUSED + 1)]
    for n, pod in enumerate(waiting[:-1]):
        assert asked(pod, snapshot, cooldown, n) == ["user"]
        cooldown = cooldown.after_unused(read(pod), NOW_MS + n)

    assert asked(waiting[-1], snapshot, cooldown, AGAIN_MS - 1) is None
    assert asked(waiting[-1], snapshot, cooldown, AGAIN_MS) == ["user"]
    assert asked(of(waiting[-1], "team-c"), snapshot, cooldown, MAX_UNUSED) == ["user"]


def test_an_eviction_that_was_used_keeps_no_other_pod_from_preempting() -> None:
    waiting = percent(60, "waiting", priority=5)
    renewed = percent(60, "renewed", priority=5)

    assert asked(renewed, cards(1, user()), evicted(user("gone"), waiting), LATER_MS) == ["user"]


def test_an_evicted_pod_is_waited_for_before_its_object_shows_the_deletion() -> None:
    first = percent(60, "first", priority=5)

    assert asked(percent(60, "second", priority=5), cards(1, user()), evicted(user(), first), LATER_MS) == []


def test_an_evicted_pod_that_stays_is_not_waited_for_for_ever() -> None:
    first, second = percent(60, "first", priority=5), percent(60, "second", priority=5)

    assert asked(second, cards(1, user()), evicted(user(), first), SEEN_LEAVING_MS - 1) == []
    assert asked(second, cards(1, user()), evicted(user(), first), SEEN_LEAVING_MS) == ["user"]


def test_a_replacement_is_left_alone_for_a_while_and_its_older_siblings_are_not() -> None:
    cooldown = evicted(user("gone", "replicas"), percent(60, "first", priority=5))
    waiting = percent(60, "waiting", priority=5)
    replacement, sibling = user("new", "replicas", "after"), user("old", "replicas", "before")

    assert asked(waiting, cards(1, replacement), cooldown, REPLACEMENT_MS - 1) is None
    assert asked(waiting, cards(1, replacement), cooldown, REPLACEMENT_MS) == ["new"]
    assert asked(waiting, cards(1, sibling), cooldown, LATER_MS) == ["old"]
    assert asked(waiting, cards(1, user("other", "others", "after")), cooldown, LATER_MS) == ["other"]


def test_of_pods_that_no_controller_made_the_namespaces_new_ones_are_left_alone() -> None:
    cooldown = evicted(user("gone"), percent(60, "first", priority=5))
    waiting = percent(60, "waiting", priority=5)
    elsewhere = of(made(on(percent(60, "new"), "n", "GPU-0"), "after"), "team-c")

    assert asked(waiting, cards(1, user("new", when="after")), cooldown, LATER_MS) is None
    assert asked(waiting, cards(1, elsewhere), cooldown, LATER_MS) == ["new"]


def test_a_node_with_a_recent_eviction_rests() -> None:
    victim = user("gone")
    cooldown = evicted(victim, percent(60, "first", priority=5))
    waiting = percent(60, "waiting", priority=5)

    assert asked(waiting, cards(1, user()), cooldown, NODE_MS - 1) is None
    assert asked(waiting, cards(1, user()), cooldown, NODE_MS) == ["user"]


TURNED = standing(team_a=OVER, team_b=IN)  # team-b had to leave for team-a; now it is the other way round


@pytest.mark.parametrize("owner", ["replicas", ""])
def test_who_had_to_leave_does_not_drive_the_other_out_when_the_standings_turn(owner: str) -> None:
    beneficiary = made(on(percent(60, "winner"), "n", "GPU-0"), "before")
    cooldown = evicted(user("gone", owner), beneficiary)
    back = of(made(percent(60, "back"), "after"), "team-b", owner)

    assert asked(back, cards(1, beneficiary), cooldown, BACK_MS - 1, TURNED) is None
    assert asked(back, cards(1, beneficiary), cooldown, BACK_MS, TURNED) == ["winner"]


def test_a_replacement_does_not_preempt_back_by_priority_either() -> None:
    beneficiary = made(on(percent(60, "winner"), "n", "GPU-0"), "before")
    cooldown = evicted(user("gone", "replicas"), beneficiary)
    raised = of(made(percent(60, "raised", priority=9), "after"), "team-b", "replicas")
    another = of(made(percent(60, "another", priority=9), "after"), "team-b", "others")

    assert asked(raised, cards(1, beneficiary), cooldown, BACK_MS - 1) is None
    assert asked(another, cards(1, beneficiary), cooldown, BACK_MS - 1) == ["winner"]


def test_third_parties_may_drive_the_winner_out() -> None:
    beneficiary = made(on(percent(60, "winner"), "n", "GPU-0"), "before")
    cooldown = evicted(user("gone"), beneficiary)
    third = of(percent(60, "third"), "team-c")
    standings = standing(team_a=OVER, team_c=IN)

    assert asked(third, cards(1, beneficiary), cooldown, LATER_MS, standings) == ["winner"]


def test_old_evictions_are_forgotten() -> None:
    first = evicted(user("one"), percent(60, "first"))
    victim, beneficiary = read(user("two")), read(percent(60, "second"))

    assert len(first.after(victim, beneficiary, NOW_MS + AGAIN_MS - 1).evictions) == 2
    assert len(first.after(victim, beneficiary, NOW_MS + max(AGAIN_MS, BACK_MS)).evictions) == 1


def test_two_namespaces_whose_standings_flip_each_minute_evict_once_in_five() -> None:
    """The loop that a scheduler falls into which looks at the standings alone."""
    teams = ("team-a", "team-b")
    cooldown, evictions, holder = NOTHING_DONE, 0, 1
    for minute in range(10):
        over, paying = teams[holder], teams[1 - holder]
        now_ms = NOW_MS + minute * 60_000
        running = of(on(percent(60, f"runs-{minute}"), "n", "GPU-0"), over)
        waiting = of(percent(60, f"waits-{minute}"), paying)
        snapshot = cards(1, running)
        standings = NamespaceStandings({over: NamespaceStanding("OVER_BUDGET", "reclaim"), paying: IN})
        choice = chosen(read(waiting), snapshot, at(snapshot, standings, cooldown=cooldown, now_ms=now_ms))
        if choice is not None:
            for victim in choice.victims:
                cooldown = cooldown.after(victim, read(waiting), now_ms)
            evictions += 1
            holder = 1 - holder

    assert evictions == 2
