"""For which gang cards are kept empty: one at a time, for a bounded time, with as long a rest after it."""

from collections.abc import Sequence
from itertools import pairwise

from timekeeper.accounts.held.drains import SILENT_MS, DrainTurns
from timekeeper.accounts.held.gangs import GangMember, WaitingGang
from timekeeper.accounts.held.order import HeldPod
from timekeeper.core.gangs import Gang

AFTER, FIRST, STEP = 120_000, 900_000, 5_000


def waiting(*gangs: tuple[str, int] | tuple[str, int, int]) -> dict[str, WaitingGang]:
    """Gangs by key: name, when they were created, and priority."""
    found = {}
    for name, created_ms, *priority in gangs:
        member = GangMember(name, name, created_ms, False, True)
        held = HeldPod(
            uid=name,
            namespace="team-a",
            name=name,
            priority=priority[0] if priority else 0,
            created_ms=created_ms,
            rate_milli=1,
            needs_budget=False,
        )
        it = WaitingGang("team-a", Gang("bursar", name, 2, 2), (member,), held)
        found[it.key] = it
    return found


class Turns:
    """The gangs all lack cards, and the one that has the drain is asked for every five seconds."""

    def __init__(self, gangs: dict[str, WaitingGang], first_ms: int = FIRST) -> None:
        self.turns, self.gangs, self.now_ms = DrainTurns(AFTER, first_ms), gangs, 0
        self.ends: list[str] = []

    def until(self, ms: int) -> list[tuple[str, int, int]]:
        """Which drains there are until then: name, beginning and end."""
        found: list[tuple[str, int, int]] = []
        while self.now_ms < ms:
            before = self.turns.key
            how = self.turns.follow(self.gangs, self.gangs.keys(), self.now_ms)
            self.ends += [how] if how else []
            if before and not self.turns.key:
                found[-1] = (*found[-1][:2], self.now_ms)
            if self.turns.key and self.turns.key != before:
                found.append((self.turns.key.rpartition("/")[2], self.now_ms, 0))
            if self.turns.key:
                self.turns.asked(self.now_ms)
            self.now_ms += STEP
        return found


def lengths(drains: Sequence[tuple[str, int, int]]) -> list[int]:
    return [end - began for _, began, end in drains if end]


def test_a_gang_has_a_drain_once_it_has_waited_and_never_with_the_setting_at_zero() -> None:
    assert Turns(waiting(("g", 0))).until(AFTER) == []
    assert Turns(waiting(("g", 0))).until(AFTER + STEP) == [("g", AFTER, 0)]
    assert Turns(waiting(("g", 0)), first_ms=0).until(10 * FIRST) == []
    unasked = Turns(waiting(("g", 0)))
    unasked.turns.follow(unasked.gangs, set(), 10 * AFTER)
    assert unasked.turns.key == ""  # it lacks the budget, or was not looked for yet


def test_a_drain_in_vain_is_followed_by_a_rest_as_long_and_by_one_twice_as_long() -> None:
    turns = Turns(waiting(("g", 0)))

    drains = turns.until(50 * FIRST)

    assert lengths(drains) == [FIRST * times for times in (1, 2, 4, 4, 4, 4, 4)]
    for (_, began, end), (_, later, _) in pairwise(drains):
        assert later - end == end - began
    assert set(turns.ends) == {"over"}


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

    assert turns.turns.end("fit", turns.now_ms) == "fit"
    del turns.gangs["team-a/bursar/g"]

    assert turns.until(AFTER + 200_000)[0][:2] == ("next", AFTER + 120_000)


def test_a_gang_for_which_nothing_can_be_kept_lets_the_next_one_have_its_turn_at_once() -> None:
    turns = Turns(waiting(("never", 0), ("next", 10)))
    turns.until(AFTER + STEP)
    assert turns.turns.key == "team-a/bursar/never"

    turns.turns.end("none", turns.now_ms - STEP)

    assert turns.until(turns.now_ms + STEP) == [("next", AFTER + STEP, 0)]


def test_a_drain_that_is_not_asked_for_ends() -> None:
    """Its budget cannot pay any more: the extender has ended it by then."""
    turns = Turns(waiting(("g", 0)))
    turns.until(AFTER + STEP)

    assert turns.turns.follow(turns.gangs, turns.gangs.keys(), AFTER + SILENT_MS - 1) is None
    assert turns.turns.follow(turns.gangs, turns.gangs.keys(), AFTER + SILENT_MS) == "none"
    assert turns.turns.key == ""


def test_a_drain_ends_with_its_gang() -> None:
    turns = Turns(waiting(("g", 0)))
    turns.until(AFTER + STEP)

    assert turns.turns.follow({}, set(), turns.now_ms) == "gone"
