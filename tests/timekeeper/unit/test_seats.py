"""Who may read a report: one caller's reports keep nobody else out."""

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from deploy.local.limits import LONGEST_S
from tests.support.waiting import eventually
from timekeeper.api.ledger.seats import MAX_WAITING, MAX_WAITING_EACH, SeatKey, Seats
from timekeeper.runtime.http.problem_details import Problem

MAL, VICTIM = "system:serviceaccount:mal", "system:serviceaccount:victim"
HERS = SeatKey(VICTIM, "victim")
DASHBOARD = SeatKey("grafana", "")


class Line:
    """Callers of seats, each in a thread. ``served``: their names in the order in which they were read; each
    is read until `release` lets one more go. ``refused``: of each the seconds to wait."""

    def __init__(self, seats: Seats, pool: ThreadPoolExecutor) -> None:
        self.seats, self._pool = seats, pool
        self.served: list[str] = []
        self.refused: list[str] = []
        self._gates: list[Event] = []

    def ask(self, name: str, key: SeatKey, cost: int = 1) -> "Future[int]":
        """The status; returns when it waits, is read or is refused."""
        before = self._counts()
        found = self._pool.submit(self._read, name, key, cost)
        eventually(lambda: self._counts() != before)
        return found

    def _counts(self) -> tuple[int, int, int]:
        return self.seats.waiting(), len(self.served), len(self.refused)

    def _read(self, name: str, key: SeatKey, cost: int) -> int:
        gate = Event()
        try:
            with self.seats.taken(key, cost):
                self._gates.append(gate)
                self.served.append(name)
                gate.wait(LONGEST_S)
        except Problem as problem:
            self.refused.append(problem.headers["Retry-After"])
            return problem.status
        return 200

    def release(self) -> None:
        """End the report that is read for the longest time; the next that may is read then."""
        waiting, served = self.seats.waiting(), len(self.served)
        self._gates.pop(0).set()
        eventually(lambda: not waiting or len(self.served) > served)


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(32)


def status(seats: Seats, key: SeatKey) -> int:
    try:
        with seats.taken(key, 1):
            return 200
    except Problem as problem:
        return problem.status


@pytest.mark.parametrize(
    "keys",
    [
        [SeatKey(MAL, "mal")] * 6,
        [SeatKey(MAL, f"mal-{at}") for at in range(6)],
        [SeatKey(f"user-{at}", "mal") for at in range(6)],
    ],
    ids=["the same report", "one account about many namespaces", "many accounts about one namespace"],
)
def test_six_reports_of_one_tenant_leave_a_seat_to_every_other_caller(
    keys: list[SeatKey], pool: ThreadPoolExecutor
) -> None:
    line = Line(Seats(), pool)
    answers = [line.ask("mal", key, 10_000) for key in keys]
    assert line.served == ["mal"]  # the others wait for it, or are refused

    assert [status(line.seats, HERS) for _ in range(6)] == [200] * 6
    assert status(line.seats, DASHBOARD) == 200

    refused = sum(each.done() for each in answers)
    for _ in range(len(keys) - refused):
        line.release()
    assert Counter(each.result(LONGEST_S) for each in answers) == Counter(
        {200: len(keys) - refused, 503: refused}
    )


def test_what_waits_is_served_in_rounds_and_in_each_the_cheapest_first(pool: ThreadPoolExecutor) -> None:
    line = Line(Seats(2, wait_s=20), pool)
    for name, key, cost in (
        *((f"mal-{at}", SeatKey(MAL, "mal"), 1) for at in range(4)),
        ("dear", SeatKey("one", "a"), 300),
        ("cheap", SeatKey("two", "b"), 100),
        ("victim", HERS, 200),
    ):
        line.ask(name, key, cost)

    for _ in range(7):
        line.release()

    assert line.served == ["mal-0", "cheap", "victim", "dear", "mal-1", "mal-2", "mal-3"]


def test_one_seat_is_kept_for_readers_of_the_whole_cluster() -> None:
    seats = Seats(2, wait_s=0.05)
    with seats.taken(SeatKey(MAL, "mal"), 1):
        assert status(seats, HERS) == 503
        with seats.taken(DASHBOARD, 1):
            assert status(seats, DASHBOARD) == 503
    assert status(seats, HERS) == 200


def test_who_fills_his_part_of_the_places_is_refused_and_gives_way(pool: ThreadPoolExecutor) -> None:
    """Each of them holds a thread of the process, so their number is bounded."""
    line = Line(Seats(2, wait_s=20), pool)
    line.ask("first", SeatKey("first", "f"))
    mals = [line.ask("mal", SeatKey(MAL, "mal")) for _ in range(MAX_WAITING_EACH)]
    assert status(line.seats, SeatKey(MAL, "mal")) == 503
    others = [line.ask(f"t{at}", SeatKey(f"t{at}", f"n{at}")) for at in range(MAX_WAITING)]

    assert line.seats.waiting() == MAX_WAITING
    eventually(lambda: sum(each.done() for each in mals) == MAX_WAITING_EACH - 1)
    # all that wait have one place each
    assert [each.result(LONGEST_S) for each in others if each.done()] == [503]
    assert line.refused == ["2"] * MAX_WAITING_EACH

    for _ in range(1 + MAX_WAITING):
        line.release()
    assert sorted(each.result(LONGEST_S) for each in others) == [200] * (MAX_WAITING - 1) + [503]


def test_a_seat_is_wanted_while_somebody_waits_who_could_have_it(pool: ThreadPoolExecutor) -> None:
    """A reader who takes its report slowly then has less time."""
    line = Line(Seats(3, wait_s=20), pool)
    with line.seats.taken(SeatKey("slow", "s")) as is_wanted, line.seats.taken(SeatKey("other", "o")):
        assert not is_wanted()
        same = line.ask("same", SeatKey("another", "o"))  # which waits for the other one
        assert not is_wanted()
        hers = line.ask("hers", HERS)
        assert is_wanted()
    eventually(lambda: len(line.served) == 2)
    line.release()
    line.release()
    assert (same.result(LONGEST_S), hers.result(LONGEST_S)) == (200, 200)
