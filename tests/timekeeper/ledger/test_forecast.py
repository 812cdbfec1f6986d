"""When a namespace is out of budget, if what runs now runs on."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.profile import examples
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.core.ledger.metering import Balance, Interval, exhausted_at

ONE_DATABASE = "arithmetic over postings that other modules read on both"

NO_LOOKAHEAD = "lookahead: 0s"


@pytest.fixture
def home(town: Town) -> Callable[..., Town]:
    """A town with these entries."""

    def begin(**entries: str) -> Town:
        town.begin(("nodes", node(cards=8)), ("leases", lease(T0)), ("configmaps", budgets(**entries)))
        return town

    return begin


def runs(town: Town, name: str = "p", namespace: str = "team-a", percent: int = 100, card: int = 0) -> None:
    town.hear("pods", gpu_pod(name, namespace=namespace, started_ms=T0, percent=percent, card=card))
    town.advance(SECOND)


def exhausted(town: Town, namespace: str = "team-a") -> int | None:
    at: int | None = town.budget(namespace)["exhaustedAt"]
    return at


def test_at_the_present_rate_the_budget_lasts_so_long(home: Callable[..., Town]) -> None:
    town = home(team_a="gpuHours: 10", _settings=NO_LOOKAHEAD)
    runs(town)
    assert exhausted(town) == T0 + 10 * HOUR

    runs(town, "q", card=1)

    town.advance(HOUR)
    left = 10 * HOUR - (HOUR + 2 * SECOND) - (HOUR + 2 * SECOND)
    assert exhausted(town) == town.clock() + left // 2


def test_it_is_when_the_standing_turns(home: Callable[..., Town]) -> None:
    """What is reserved counts as gone: ten minutes earlier the standing is OVER_BUDGET."""
    town = home(team_a="gpuHours: 10")
    runs(town)
    at = exhausted(town)
    assert at == T0 + 10 * HOUR - 10 * MINUTE

    for moment, standing in ((at - 1000, "IN_BUDGET"), (at, "OVER_BUDGET")):
        town.clock.at_ms = moment
        town.advance()
        assert town.standing() == standing


@pytest.mark.parametrize(
    "entry",
    ["gpuHours: unlimited", "gpuHours: 500", "gpuHours: 0", "gpuHours: 15\nperiod: day"],
    ids=["unlimited", "lasts to the period's end", "exhausted already", "lasts to the day's end"],
)
def test_there_may_be_no_such_moment(home: Callable[..., Town], entry: str) -> None:
    town = home(team_a=entry, _settings=NO_LOOKAHEAD)
    runs(town)

    assert exhausted(town) is None


def test_while_nothing_runs_nothing_is_foretold(home: Callable[..., Town]) -> None:
    town = home(team_a="gpuHours: 10")
    town.change("pods", gpu_pod("waits", node=""))
    assert exhausted(town) is None

    town.change("pods", gpu_pod("pulls", started_ms=None))  # it holds its cards
    assert exhausted(town) is not None


def test_a_pod_that_was_admitted_over_budget_counts_too(home: Callable[..., Town]) -> None:
    town = home(team_a="gpuHours: 10")
    town.hear("pods", gpu_pod(started_ms=T0, standing="OVER_BUDGET"))
    town.advance(SECOND)

    assert exhausted(town) == T0 + 10 * HOUR


def test_a_group_is_out_of_budget_by_what_all_its_members_run(home: Callable[..., Town]) -> None:
    own = "gpuHours: 20\ngroup: lab"
    lab = {"_group.lab": "gpuHours: 10"}
    town = home(team_a=own, team_b="gpuHours: 4\ngroup: lab", _settings=NO_LOOKAHEAD, **lab)
    runs(town)
    town.clock.at_ms = T0
    runs(town, "q", "team-b", card=1)

    a: Json = town.budget("team-a")
    assert (a["exhaustedAt"], a["group"]["exhaustedAt"]) == (T0 + 5 * HOUR, T0 + 5 * HOUR)
    assert exhausted(town, "team-b") == T0 + 4 * HOUR
    assert exhausted(town, "_group.lab") == T0 + 5 * HOUR


def test_the_forecast_makes_no_new_standings_document(home: Callable[..., Town]) -> None:
    town = home(team_a="gpuHours: 10", _settings=NO_LOOKAHEAD)
    runs(town)
    tag, told = town.get("/v1/standings").headers["ETag"], exhausted(town)
    town.advance(20 * SECOND, heard=False)

    assert exhausted(town) != told  # the node was silent: what it ran is not charged yet
    assert town.get("/v1/standings").headers["ETag"] == tag


@settings(max_examples=examples(400))
@example(granted=1, spent=0, rate=1, reserving=0, lookahead=0, length=1)  # at the period's very end
@given(
    granted=st.integers(0, 300),
    spent=st.integers(0, 60),
    rate=st.integers(0, 6),
    reserving=st.integers(0, 6),
    lookahead=st.integers(0, 60),
    length=st.integers(1, 80),
)
def test_the_forecast_is_the_first_moment_without_anything_left(
    granted: int, spent: int, rate: int, reserving: int, lookahead: int, length: int
) -> None:
    """Against a walk, millisecond by millisecond."""
    start = 50

    def left(at: int) -> int:
        reserved = reserving * max(0, min(lookahead, start + length - at))
        return granted - spent - rate * (at - start) - reserved

    walked = next((at for at in range(start, start + length) if left(at) <= 0), None)
    balance = Balance(granted, spent, 0, reserving * min(lookahead, length))

    found = exhausted_at(balance, rate, reserving, lookahead, Interval(0, start + length), start)

    assert found == (None if left(start) <= 0 else walked)


def test_of_a_budget_for_all_time_the_end_may_be_far(home: Callable[..., Town]) -> None:
    town = home(team_a="gpuHours: 100000\nperiod: once", _settings=NO_LOOKAHEAD)
    runs(town, percent=1)

    assert exhausted(town) == T0 + 100 * 100_000 * HOUR
    assert town.budget()["validUntil"] is None
