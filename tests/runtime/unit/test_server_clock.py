"""The API server's clock by the Date of its answers."""

import random
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from timekeeper.runtime.clock import TOLERANCE_MS, ServerClock

T0 = 1_795_168_800_000
HOUR = 3_600_000


class Machine:
    """A machine whose wall clock is ``ahead_ms`` ahead of the server's true time."""

    def __init__(self, ahead_ms: int) -> None:
        self.true_ms, self.ahead_ms = T0, ahead_ms
        self.clock = ServerClock(lambda: self.true_ms + self.ahead_ms, lambda: self.true_ms - T0 + 77)

    def call(self, there_ms: int = 3, back_ms: int = 4, server_ahead_ms: int = 0) -> None:
        """One call, and the time that it takes."""
        sent = self.clock.sent()
        self.true_ms += there_ms
        date = datetime.fromtimestamp((self.true_ms + server_ahead_ms) // 1000, UTC)
        self.true_ms += back_ms
        self.clock.note(sent, format_datetime(date, usegmt=True))


@pytest.mark.parametrize("ahead_ms", [-HOUR, -60_000, 60_000, 365 * 24 * HOUR])
def test_a_wrong_clock_is_corrected_to_milliseconds_after_some_calls(ahead_ms: int) -> None:
    machine, draw = Machine(ahead_ms), random.Random(7)
    machine.call()
    assert abs(machine.clock.now_ms() - machine.true_ms) <= 1_000

    for _ in range(200):
        machine.true_ms += draw.randrange(2_000)
        machine.call(draw.randrange(20), draw.randrange(20))

    assert abs(machine.clock.now_ms() - machine.true_ms) <= 30
    assert abs(machine.clock.offset_ms() - ahead_ms) <= 30


@pytest.mark.parametrize("ahead_ms", [0, 400, -900, TOLERANCE_MS - 1_000])
def test_a_clock_that_agrees_is_left_alone(ahead_ms: int) -> None:
    machine = Machine(ahead_ms)
    for _ in range(20):
        machine.true_ms += 1_234
        machine.call()

    assert machine.clock.now_ms() == machine.true_ms + ahead_ms
    assert (machine.clock.offset_ms(), machine.clock.sentence()) == (0, "")


def test_a_wall_clock_that_is_set_while_it_runs_changes_nothing() -> None:
    machine = Machine(0)
    machine.call()

    machine.ahead_ms = -HOUR
    machine.true_ms += 60_000

    assert abs(machine.clock.now_ms() - machine.true_ms) <= 1_000
    assert "clock is 3600." in machine.clock.sentence() or "clock is 3599." in machine.clock.sentence()
    assert "s behind the API server's, whose time is used" in machine.clock.sentence()


def test_a_server_whose_clock_is_set_is_followed() -> None:
    machine = Machine(0)
    machine.call()

    machine.call(server_ahead_ms=HOUR)

    assert abs(machine.clock.now_ms() - machine.true_ms - HOUR) <= 1_000


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_an_answer_without_a_date_teaches_nothing(date: str | None) -> None:
    machine = Machine(HOUR)
    machine.clock.note(machine.clock.sent(), date)

    assert machine.clock.now_ms() == machine.true_ms + HOUR
