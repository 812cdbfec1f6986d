"""GPUBudget objects: when they are written, in which order, and what they say."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from tests.timekeeper.worlds import T0
from timekeeper.accounts.balance import BalanceFigures, Statement, statement, status_of
from timekeeper.accounts.budget_history import BudgetEntry, history_of
from timekeeper.edge.reflector import UnreachableError
from timekeeper.runtime.api_server import Answered
from timekeeper.settler.budget_objects import (
    ABSENT_S,
    AT_ONCE,
    COMPARE_S,
    ORDINARY_S,
    URGENT_S,
    BudgetObjects,
)

HOUR = 3_600_000_000
NAMES = [f"team-{at}" for at in range(5)]
HISTORY = history_of(
    BudgetEntry(name, "gpuHours: 100\nperiod: month\nonExhausted: deny", 0) for name in NAMES
)


def spent(name: str, hundredths: int) -> Statement:
    """An account of 100 GPU-hours of which so many hundredths of an hour were used."""
    return statement(HISTORY, name, BalanceFigures(granted=100 * HOUR, posted=hundredths * HOUR // 100), T0)


class PlayedApi:
    """Objects by namespace, and every write in order."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.writes: list[str] = []
        self.installed = True
        self.lists = 0

    def page(self, path: str) -> Any:
        assert path == "/apis/bursar.dev/v1alpha1/gpubudgets?limit=500"
        self.lists += 1
        if not self.installed:
            raise UnreachableError("404 the server could not find the requested resource")
        return {"items": list(self.objects.values())}

    def call(self, method: str, path: str, body: Any, **_: Any) -> Answered:
        namespace = body["metadata"]["namespace"]
        start = f"/apis/bursar.dev/v1alpha1/namespaces/{namespace}/gpubudgets/budget?"
        assert (method, path.startswith(start), "force=true" in path) == ("PATCH", True, True)
        if not self.installed:
            return Answered(404, {"message": "not found"})
        self.writes.append(namespace)
        self.objects[namespace] = body
        return Answered(200, body)


class Ground:
    """The writer, the accounts that it sees, the namespaces that exist, and its clock."""

    def __init__(self, accounts: Mapping[str, Statement] | None = None) -> None:
        self.api = PlayedApi()
        self.accounts = accounts
        self.existing = set(NAMES)
        self.now_s = 0.0
        self.start()

    def start(self) -> None:
        """A new process."""
        self.writer = BudgetObjects(
            self.api,  # type: ignore[arg-type]
            lambda: self.accounts,
            lambda name: name in self.existing,
            lambda: self.now_s,
            lambda: T0 + int(1000 * self.now_s),
        )

    def step(self) -> float:
        pause_s = self.writer.step()
        self.now_s += pause_s
        return pause_s

    def settle(self) -> list[str]:
        """Steps until nothing is due; what was written."""
        written: list[str] = []
        while True:
            before = len(self.api.writes)
            pause_s = self.step()
            written += sorted(self.api.writes[before:])  # of one step they are side by side
            if pause_s == 1.0:
                return written

    def status(self, name: str) -> Any:
        return self.api.objects[name]["status"]


@pytest.fixture
def ground() -> Ground:
    return Ground({name: spent(name, 0) for name in NAMES})


def test_each_namespace_gets_an_object_that_says_its_figures(ground: Ground) -> None:
    ground.accounts = {"team-0": spent("team-0", 1234)}

    assert ground.settle() == ["team-0"]
    told = ground.api.objects["team-0"]
    assert (told["apiVersion"], told["kind"]) == ("bursar.dev/v1alpha1", "GPUBudget")
    assert told["metadata"] == {"name": "budget", "namespace": "team-0"}
    status = dict(told["status"])
    assert status.pop("periodEnd").endswith(":00Z")
    assert datetime.fromisoformat(status.pop("asOf")).timestamp() == T0 // 1000
    assert status == {
        "standing": "IN_BUDGET",
        "onExhausted": "deny",
        "granted": "100.00",
        "used": "12.34",
        "remaining": "87.66",
        "left": "87.66",
        "usedPercent": 12,
    }


def test_the_object_says_what_is_left_of_the_account_that_decides() -> None:
    """Its own account has 100 - 27 = 73 GPU-hours, its group -5."""
    entries = {
        "team-a": "gpuHours: 100\ngroup: lab",
        "_group.lab": "gpuHours: 100",
    }
    history = history_of(BudgetEntry(key, text, 0) for key, text in entries.items())
    lab = statement(history, "_group.lab", BalanceFigures(granted=100 * HOUR, posted=105 * HOUR), T0)
    own = statement(history, "team-a", BalanceFigures(granted=100 * HOUR, posted=27 * HOUR), T0, lab)

    status = status_of(own).wire()

    assert (status["standing"], status["remaining"]) == ("OVER_BUDGET", "73.00")
    assert (status["left"], status["leftOf"]) == ("-5.00", "lab")


def test_figures_that_are_ten_minutes_old_are_written_again_the_oldest_first(ground: Ground) -> None:
    ground.settle()
    old = {name: ground.status(name)["asOf"] for name in NAMES}
    ground.accounts = {**ground.accounts, "team-3": spent("team-3", 99)}  # type: ignore[dict-item]
    ground.now_s += 300
    ground.accounts = {**ground.accounts, "team-1": spent("team-1", 500)}
    assert ground.settle() == ["team-1"]

    ground.now_s += 290
    assert ground.settle() == []
    ground.now_s += 10
    begun_s = ground.now_s
    assert ground.settle() == ["team-0", "team-2", "team-3", "team-4"]
    assert ground.now_s - begun_s == 4 * ORDINARY_S + 1
    assert ground.status("team-3")["used"] == "0.99"
    assert all(ground.status(name)["asOf"] > old[name] for name in NAMES)


@pytest.mark.parametrize("as_of", [None, 7, "", "2026-11-01T00:00:00Z"])
def test_after_a_restart_objects_without_a_fresh_time_are_written_again(
    ground: Ground, as_of: object
) -> None:
    """As those of an earlier release, after what a new standing is due to."""
    ground.settle()
    for name in NAMES:
        ground.api.objects[name]["status"]["asOf"] = as_of
    ground.start()
    ground.accounts = {**ground.accounts, "team-4": spent("team-4", 10_001)}  # type: ignore[dict-item]

    assert ground.settle() == ["team-4", "team-0", "team-1", "team-2", "team-3"]


def test_a_small_amount_has_two_digits() -> None:
    figures = BalanceFigures(granted=HOUR, posted=HOUR // 480)

    assert status_of(statement(HISTORY, "team-0", figures, T0)).used == "0.0021"


def test_less_than_a_per_cent_is_not_written_and_a_per_cent_is(ground: Ground) -> None:
    ground.settle()

    ground.accounts = {**ground.accounts, "team-0": spent("team-0", 99)}  # type: ignore[dict-item]
    assert ground.settle() == []
    ground.accounts = {**ground.accounts, "team-0": spent("team-0", 100)}
    assert ground.settle() == ["team-0"]


def test_figures_are_written_twice_a_second_and_a_new_standing_before_them(ground: Ground) -> None:
    ground.settle()
    figures = {name: spent(name, 500) for name in NAMES}
    ground.accounts = {**figures, "team-4": spent("team-4", 10_001)}

    pauses = [ground.step() for _ in range(5)]

    assert ground.api.writes[-5:] == ["team-4", "team-0", "team-1", "team-2", "team-3"]
    assert pauses == [URGENT_S, *[ORDINARY_S] * 4]
    assert ground.status("team-4")["standing"] == "OVER_BUDGET"
    assert ground.status("team-4")["remaining"] == "-0.01"


def test_a_new_standing_overtakes_three_thousand_new_grants_which_are_written_side_by_side() -> None:
    names = [f"team-{at}" for at in range(3_000)]
    history = history_of(BudgetEntry(name, "gpuHours: 100\nperiod: month", 0) for name in names)

    def account(name: str, granted: int, posted: int = 0) -> Statement:
        return statement(history, name, BalanceFigures(granted=granted * HOUR, posted=posted * HOUR), T0)

    ground = Ground({name: account(name, 100) for name in names})
    ground.existing = set(names)
    assert len(ground.settle()) == len(names)
    granted = {name: account(name, 200) for name in names}
    ground.accounts = granted
    before = len(ground.api.writes)
    ground.step()
    assert len(ground.api.writes) - before == AT_ONCE

    ground.accounts = {**granted, "team-2999": account("team-2999", 200, posted=201)}
    ground.step()

    assert ground.api.writes[before + AT_ONCE :] == ["team-2999"]
    assert ground.status("team-2999")["standing"] == "OVER_BUDGET"
    steps = [ground.step() for _ in range((len(names) - 1) // AT_ONCE)]
    assert set(steps) == {URGENT_S}
    assert set(ground.api.writes[before:]) == set(names)


@pytest.mark.untraced
def test_a_thousand_namespaces_cost_two_writes_a_second_and_each_gets_its_turn() -> None:
    """Each uses a per cent in a hundred seconds: five times what is written."""
    names = [f"team-{at}" for at in range(1000)]
    history = history_of(
        BudgetEntry(name, "gpuHours: 100\nperiod: month\nonExhausted: deny", 0) for name in names
    )

    def accounts(now_s: float) -> dict[str, Statement]:
        posted = int(now_s // 50) * HOUR // 2
        figures = BalanceFigures(granted=100 * HOUR, posted=posted)
        return {name: statement(history, name, figures, T0) for name in names}

    ground = Ground(accounts(0))
    ground.existing = set(names)
    assert len(ground.settle()) == 1000
    begun, begun_s, written_s, read_s = len(ground.api.writes), ground.now_s, [], ground.now_s
    while ground.now_s < begun_s + 700:
        if ground.now_s > read_s + 50:
            ground.accounts, read_s = accounts(ground.now_s), ground.now_s
        before = len(ground.api.writes)
        written_s += [ground.now_s] * (ground.step() != 1.0)
        assert len(ground.api.writes) - before <= 1

    assert set(ground.api.writes[begun:]) == set(names)
    assert all(later - earlier >= 1 for earlier, later in zip(written_s, written_s[2:], strict=False))


def test_a_restart_writes_nothing_that_is_there_already(ground: Ground) -> None:
    ground.settle()
    ground.start()

    assert ground.settle() == []


def test_a_deleted_and_a_forged_object_are_put_right_within_ten_minutes(ground: Ground) -> None:
    ground.settle()
    del ground.api.objects["team-1"]
    ground.api.objects["team-2"]["status"] = {"standing": "UNLIMITED", "usedPercent": "none"}

    assert ground.settle() == []
    ground.now_s += COMPARE_S
    assert sorted(ground.settle()[:2]) == ["team-1", "team-2"]
    assert ground.status("team-2")["standing"] == "IN_BUDGET"


def test_before_the_first_decision_nothing_is_read_or_written() -> None:
    ground = Ground(None)
    ground.api.objects["team-0"] = {"metadata": {"name": "budget", "namespace": "team-0"}, "status": {}}

    assert ground.settle() == []
    assert ground.api.lists == 0


def test_a_namespace_that_does_not_exist_yet_gets_its_object_once_it_does(ground: Ground) -> None:
    ground.existing.remove("team-3")
    assert "team-3" not in ground.settle()

    ground.existing.add("team-3")
    assert ground.settle() == ["team-3"]


def test_a_namespace_without_a_budget_any_more_says_so_and_one_that_never_had_one_has_no_object() -> None:
    ground = Ground(
        {"team-0": spent("team-0", 1), "other": statement(HISTORY, "other", BalanceFigures(), T0)}
    )
    ground.existing.add("other")
    assert ground.settle() == ["team-0"]

    ground.accounts = {}
    assert ground.settle() == ["team-0"]
    assert ground.status("team-0") == {"standing": "UNLIMITED", "asOf": ground.status("team-0")["asOf"]}


def test_without_the_kind_it_looks_each_minute_and_writes_once_it_is_there(ground: Ground) -> None:
    ground.api.installed = False
    assert [ground.step(), ground.step()] == [ABSENT_S, ABSENT_S]
    assert ground.api.writes == []

    ground.api.installed = True
    assert sorted(ground.settle()) == NAMES


def test_a_kind_that_is_removed_meanwhile_is_looked_for_again(ground: Ground) -> None:
    ground.settle()
    ground.api.installed = False
    ground.accounts = {name: spent(name, 10_001) for name in NAMES}
    assert ground.step() == ABSENT_S

    ground.api.installed, ground.api.objects = True, {}
    assert sorted(ground.settle()) == NAMES
