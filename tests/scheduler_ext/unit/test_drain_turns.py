"""For which gang cards are kept empty: one at a time, for a bounded time, with as long a rest after it."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.drain_turns import DrainTurns
from scheduler_ext.gangs.drains import GangDrains
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.gang_table import GangState
from tests.scheduler_ext.worlds import percent, read
from timekeeper.core.gangs import Gang

AFTER, FIRST, STEP = 120_000, 900_000, 5_000


def waiting(*gangs: tuple[str, int] | tuple[str, int, int]) -> dict[str, GangState]:
    """Gangs by key: name, when they were created, and priority."""
    found = {}
    for name, created_ms, *priority in gangs:
        pod = replace(read(percent(100, name, priority=priority[0] if priority else 0)), asked_ms=created_ms)
        key = f"team-a/bursar/{name}"
        found[key] = GangState(key=key, gang=Gang(f"bursar/{name}", 2, 2), waiting=(pod,), bound=())
    return found


class Turns:
    """The gangs all lack cards, and are looked at every five seconds."""

    def __init__(self, gangs: dict[str, GangState], first_ms: int = FIRST) -> None:
        self.turns, self.gangs, self.now_ms = DrainTurns(AFTER, first_ms), gangs, 0

    def until(self, ms: int) -> list[tuple[str, int, int]]:
        """Which drains there are until then: name, beginning and end."""
        found: list[tuple[str, int, int]] = []
        while self.now_ms < ms:
            before = self.turns.key
            self.turns.follow(self.gangs, self.gangs.keys(), self.now_ms)
            if before and not self.turns.key:
                found[-1] = (*found[-1][:2], self.now_ms)
            if self.turns.key and self.turns.key != before:
                found.append((self.turns.key.rpartition("/")[2], self.now_ms, 0))
            self.now_ms += STEP
        return found


def lengths(drains: Sequence[tuple[str, int, int]]) -> list[int]:
    return [end - began for _, began, end in drains if end]


def test_a_gang_has_a_drain_once_it_has_waited_and_never_with_the_setting_at_zero() -> None:
    assert Turns(waiting(("g", 0))).until(AFTER) == []
    assert Turns(waiting(("g", 0))).until(AFTER + STEP) == [("g", AFTER, 0)]
    assert Turns(waiting(("g", 0)), first_ms=0).until(10 * FIRST) == []
    fits = Turns(waiting(("g", 0)))
    fits.turns.follow(fits.gangs, set(), 10 * AFTER)
    assert fits.turns.key == ""  # or was not looked at yet


def test_a_failed_drain_is_followed_by_a_rest_as_long_and_by_one_twice_as_long() -> None:
    turns = Turns(waiting(("g", 0)))

    drains = turns.until(50 * FIRST)

    assert lengths(drains) == [FIRST * times for times in (1, 2, 4, 4, 4, 4, 4)]
    for (_, began, end), (_, later, _) in pairwise(drains):
        assert later - end == end - began
    assert turns.turns.ended == {"fit": 0, "over": 7, "none": 0, "gone": 0}


def test_at_least_half_of_the_time_has_no_drain_whatever_waits() -> None:
    turns = Turns(waiting(*((f"g{at}", at) for at in range(40))))

    drains = turns.until(AFTER + 100 * FIRST)

    assert sum(lengths(drains)) <= (turns.now_ms - AFTER + 4 * FIRST) / 2
    for (_, began, end), (_, later, _) in pairwise(drains):
        assert later >= 2 * end - began


def test_each_gang_has_its_turn_before_one_has_another() -> None:
    """By priority, then by age."""
    turns = Turns(waiting(("young", -50), ("old", -100), ("high", -40, 5)))

    assert [name for name, _, _ in turns.until(8 * FIRST)] == ["high", "old", "young", "high"]


def test_after_a_drain_that_fitted_the_next_gang_waits_only_as_long_as_it_lasted() -> None:
    turns = Turns(waiting(("g", 0), ("next", 10)))
    turns.until(AFTER + 60_000)

    turns.turns.end("fit", turns.now_ms)
    del turns.gangs["team-a/bursar/g"]

    assert turns.until(AFTER + 200_000)[0][:2] == ("next", AFTER + 120_000)


def test_a_gang_for_which_nothing_can_be_kept_lets_the_next_one_have_its_turn_at_once() -> None:
    turns = Turns(waiting(("never", 0), ("next", 10)))
    turns.until(AFTER + STEP)
    assert turns.turns.key == "team-a/bursar/never"

    turns.turns.end("none", turns.now_ms - STEP)

    assert turns.until(turns.now_ms + STEP) == [("next", AFTER + STEP, 0)]


def test_a_drain_that_an_autoscalers_turn_ends_rests_from_that_moment() -> None:
    turns = Turns(waiting(("g", 0)))
    turns.until(AFTER + STEP)
    cache = ClusterCache(lambda: turns.now_ms, lambda _: None)
    drains = GangDrains(
        cache, lambda seen: PlanInput(seen, UNHEARD, lambda _: BINPACK), turns.turns, lambda *_, **__: None
    )

    drains.grow(turns.gangs["team-a/bursar/g"], turns.now_ms, turns.now_ms + FIRST)

    ended_ms = turns.now_ms
    assert turns.until(ended_ms + 2 * FIRST) == [("g", ended_ms + FIRST, 0)]
