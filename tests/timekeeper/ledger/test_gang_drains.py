"""Who asks for a drain: the releaser, for a gang that has lacked cards, with each call until it fits. Real
settler; the extender's part is a few lines."""

import pytest
from prometheus_client import REGISTRY

from tests.timekeeper.ledger.test_gangs import Gangs, member
from tests.timekeeper.ledger.test_holding import HOLD
from tests.timekeeper.worlds import SECOND, Town, budgets
from timekeeper.accounts.held.drains import DrainTurns
from timekeeper.accounts.held.gangs import AskForCards
from timekeeper.settler.gang_starts import GangAnswer, GangStarts, answer_of
from timekeeper.settler.releaser import Releaser

ONE_DATABASE = "decisions about values; test_holding has the same releaser"

AFTER, FIRST = 120 * SECOND, 900 * SECOND
KEPT = "3 cards on 1 node are kept for it at most until soon"


class Draining(Gangs):
    """``keeps``: the extender finds cards to keep for gangs whose first pod's name begins so; ``drains``:
    these names, of the calls that want a drain, with its end; ``looks``: of all calls."""

    keeps = ""

    def new_releaser(self, at_once: int = 1, gangs: GangStarts | None = None) -> Releaser:
        self.drains: list[tuple[str, int]] = []
        self.looks: list[str] = []
        self.told: list[str] = []
        starts = GangStarts(
            self.reserve,
            lambda _namespace, _name, _uid, _reason, note: self.told.append(note),
            self.town.clock,
            submit=self.submit,
            drains=DrainTurns(AFTER, FIRST),
        )
        return super().new_releaser(at_once, starts)

    def reserve(self, asked: AskForCards, epoch: int, until_ms: int) -> GangAnswer:
        name = asked.uids[0].removeprefix("uid-")
        self.looks.append(name)
        if asked.drain_ms:
            self.drains.append((name, asked.drain_ms))
        if self.fits:
            return super().reserve(asked, epoch, until_ms)
        finds = asked.drain_ms and name.startswith(self.keeps)
        return answer_of({"missing": 1, "cards": 1, "drain": KEPT if finds else ""}, len(asked.uids))

    def turn(self, ms: int) -> list[list[str]]:
        """What is released until then."""
        return self.steps(ms // 500)


def ended(how: str) -> float:
    return REGISTRY.get_sample_value("bursar_gang_drains_total", {"end": how}) or 0.0


@pytest.fixture
def gangs(town: Town) -> Draining:
    made = Draining(town)
    made.fits = False
    return made


def test_after_a_while_each_call_for_the_gang_asks_for_a_drain_with_one_end(gangs: Draining) -> None:
    now_ms = gangs.town.clock()
    gangs.begin(*(member(name, created_ms=now_ms) for name in "abc"))
    gangs.turn(AFTER - 5 * SECOND)
    assert gangs.looks
    assert gangs.drains == []

    gangs.turn(30 * SECOND)

    assert len(gangs.drains) >= 3
    ((_, until_ms),) = set(gangs.drains)
    assert FIRST <= until_ms - now_ms - AFTER <= FIRST + 10 * SECOND
    assert gangs.told[-1] == (
        f"Gang g starts whole: 3 of 3 members exist; 2 of 3 members fit; 1 cards missing; {KEPT}."
    )


def test_when_it_fits_it_is_released_and_the_drain_is_over(gangs: Draining) -> None:
    gangs.begin(*(member(name) for name in "abc"))
    gangs.turn(AFTER + 10 * SECOND)
    before, gangs.fits = ended("fit"), True

    released = gangs.turn(10 * SECOND)

    assert ["a", "b", "c"] in released
    assert ended("fit") == before + 1


def test_the_gang_with_the_drain_is_looked_for_before_all_others(gangs: Draining) -> None:
    """The extender keeps cards only while it is asked, and looks for one gang at a time. Thirty come when
    it has the drain, and are older."""
    now_ms = gangs.town.clock()
    gangs.begin(*(member(name, created_ms=now_ms) for name in ("z1", "z2", "z3")))
    gangs.turn(AFTER + 10 * SECOND)
    assert gangs.drains
    for at in range(30):
        for name in "xy":
            gangs.town.hear("pods", member(f"{at}-{name}", 2, f"g{at}"))
    gangs.turn(10 * SECOND)
    del gangs.looks[:], gangs.drains[:]

    gangs.turn(30 * SECOND)

    assert {name for name, _ in gangs.drains} == {"z1"}
    assert len(gangs.drains) >= 5
    assert len(set(gangs.looks)) > 10  # the others have their looks between


def test_a_drain_that_finds_nothing_to_keep_ends_at_once(gangs: Draining) -> None:
    gangs.keeps = "another"
    before = ended("none")
    gangs.begin(*(member(name) for name in "abc"))

    gangs.turn(AFTER + 30 * SECOND)

    assert len(gangs.drains) == 1
    assert ended("none") == before + 1


def test_a_gang_that_its_budget_cannot_pay_any_more_has_no_drain(gangs: Draining) -> None:
    gangs.begin(*(member(name) for name in "abc"), team_a=HOLD.format(hours=0.5))
    gangs.turn(AFTER + 10 * SECOND)
    assert gangs.drains
    gangs.town.change("configmaps", budgets(team_a=HOLD.format(hours=0.1)))
    gangs.turn(10 * SECOND)
    count = len(gangs.drains)

    gangs.turn(60 * SECOND)

    assert len(gangs.drains) == count


def test_the_call_has_the_end_only_while_there_is_a_drain() -> None:
    assert answer_of({"cards": 2, "drain": KEPT}, 3) == GangAnswer(0, f"2 cards missing; {KEPT}", "", 2, True)
    assert answer_of({"cards": 2}, 3) == GangAnswer(0, "2 cards missing", "", 2)
