"""What the settler asks of the database where it counts anew: no more for many namespaces than for few, and
only where it begins for each period that a session has lasted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from tests.timekeeper.worlds import HOUR, MINUTE, T0, Town, budgets, gpu_pod, lease, node
from timekeeper.settler.settler import Settler

HOURLY = "gpuHours: 10\nperiod: hour\ncarryOver: 0.5"


def aged(town: Town, names: int, hours: int, heard: bool = True) -> None:
    """So many namespaces, in each a pod that has run for so many hours, each seen by the settler or not."""
    entries = {f"team_{each}": HOURLY for each in range(names)}
    town.begin(("nodes", node(cards=8)), ("leases", lease(T0)), ("configmaps", budgets(**entries)))
    for each in range(names):
        town.hear("pods", gpu_pod(f"p{each}", namespace=f"team-{each}", percent=10, started_ms=T0))
    for _ in range(hours if heard else 0):
        town.advance(HOUR)
    if not heard:
        town.tick()
        town.clock.turn(hours * HOUR)
        town.node_heard()


@contextmanager
def asked(town: Town) -> Iterator[list[str]]:
    """The SELECTs and WITHs that are sent meanwhile."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.split(None, 1)[0] in ("SELECT", "WITH"):
            found.append(statement)

    event.listen(town.store.engine, "before_cursor_execute", note)
    yield found
    event.remove(town.store.engine, "before_cursor_execute", note)


@pytest.mark.parametrize(("names", "hours"), [(2, 4), (9, 4), (9, 24)])
@pytest.mark.parametrize("heard", [True, False], ids=["seen", "missed"])
def test_a_first_tick_queries_once_for_each_period_and_not_for_each_namespace(
    town: Town, names: int, hours: int, heard: bool
) -> None:
    aged(town, names, hours, heard)
    town.restart()

    with asked(town) as statements:
        town.tick()

    assert len(statements) <= hours + 20
    assert len({town.budget(f"team-{each}")["carried"] for each in range(names)}) == 1
    assert town.budget("team-0")["carried"] > 0


def test_what_is_kept_after_a_first_tick_does_not_grow_with_the_periods(town: Town) -> None:
    aged(town, names=3, hours=12)
    town.resume()

    ledger = town.settler.ledger
    assert len(ledger.totals) == 3 * 2
    assert len(ledger.grants.ended) <= 3


def test_a_clock_turned_back_a_little_queries_no_period_long_past(town: Town) -> None:
    aged(town, names=3, hours=12)
    town.advance(10 * MINUTE)
    town.clock.turn(-10)

    with asked(town) as statements:
        town.tick()

    assert len(statements) <= 12


def test_what_could_not_be_written_is_counted_anew_from_what_really_moved(town: Town) -> None:
    aged(town, names=3, hours=12)
    town.settler.ledger.table.is_whole = False  # as a tick that fails leaves it
    town.clock.turn(MINUTE)
    town.node_heard()

    with asked(town) as statements:
        town.tick()

    assert len(statements) <= 12


@pytest.mark.parametrize("names", [2, 9])
def test_unused_and_unread_periods_are_not_queried_one_by_one(town: Town, names: int) -> None:
    aged(town, names, hours=2)
    for each in range(names):
        ended = gpu_pod(
            f"p{each}", namespace=f"team-{each}", percent=10, started_ms=T0, ended_ms=town.clock()
        )
        town.hear("pods", ended)
    town.tick()
    town.clock.turn(24 * HOUR)
    town.restart()

    with asked(town) as statements:
        town.tick()

    # SQLite looks the last decision of each namespace up by itself, however many periods there were
    decided = [each for each in statements if "FROM decisions" in each]
    assert len(statements) - len(decided) <= 24 + 20
    assert len(decided) <= names


def test_after_a_slow_reading_of_beats_the_next_waits_five_times_as_long(town: Town) -> None:
    """A fifth of the settler's time, and no more, where the database is slow."""
    moments = iter((0.0, 2.0, 9.9, 10.0, 10.0))  # begins and ends, comes too soon, begins and ends
    pod = gpu_pod(started_ms=T0)
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", pod))
    town.settler = Settler(town.store, town.clock, town.notices.append, seconds=lambda: next(moments))
    town.list_all()
    town.tick()
    town.clock.turn(MINUTE)
    town.beat(pod, 1)

    town.tick()
    assert town.settler.ledger.beats == {}
    town.tick()
    assert town.settler.ledger.beats == {"uid-p": T0 + MINUTE}
