"""What protected pods are spared: notices, evictions, the gate; and what they are told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.ledger.test_budget_evictions import ONE_HOUR, Spending, pod
from tests.timekeeper.ledger.test_holding import Holding, held_pod
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.settler.evictions import reasons

ONE_DATABASE = (
    "decisions and calls of the API server; what they follow from is read on both in test_protected"
)

SERVING: Json = {"tier": "serving"}
PROTECT = "\nprotect: {labels: {tier: serving}, cards: 1}"


@pytest.fixture
def spending(town: Town, tmp_path: Path) -> Iterator[Spending]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Spending(town, api, url, tmp_path)


@pytest.fixture
def holding(town: Town) -> Holding:
    return Holding(town)


def test_a_protected_pod_gets_no_notice_and_the_others_leave(spending: Spending) -> None:
    """The floor is one card: of two serving pods the older one stays."""
    spending.begin(
        pod("old", 0, age_ms=MINUTE, labels=SERVING),
        pod("young", 1, labels=SERVING),
        pod("batch", 2, age_ms=HOUR),
        team_a=ONE_HOUR + PROTECT,
    )

    assert set(spending.later(10 * MINUTE, *[5 * MINUTE] * 10, HOUR)) == {"young", "batch"}
    noticed = {each["regarding"]["name"] for each in spending.api.events if each["reason"] == reasons.NOTICE}
    assert noticed == {"young", "batch"}
    assert spending.notice("old") is None


def test_a_pod_that_gets_room_loses_its_notice_and_says_why(spending: Spending) -> None:
    spending.begin(
        pod("old", 0, age_ms=MINUTE, labels=SERVING),
        pod("young", 1, labels=SERVING),
        _settings="lookahead: 0s\nevictGrace: 1h",
        team_a=ONE_HOUR + PROTECT,
    )
    spending.later(40 * MINUTE)
    assert spending.notice("young") is not None

    spending.town.hear("pods", spending.pod("old"), deleted=True)
    spending.town.tick()
    spending.later(20 * SECOND)

    assert spending.notice("young") is None
    assert spending.later(HOUR, HOUR, HOUR) == []


def test_a_protection_that_ends_gives_a_whole_grace(spending: Spending) -> None:
    entry = ONE_HOUR + "\nprotect: {labels: {tier: serving}, hours: 2}"
    spending.begin(pod("web", 0, labels=SERVING), team_a=entry)
    assert spending.later(HOUR, HOUR - MINUTE) == []
    assert spending.notice("web") is None

    spending.turn(2 * MINUTE)

    notice = spending.notice("web")
    assert notice is not None
    assert T0 + 2 * HOUR + 5 * MINUTE <= notice <= T0 + 2 * HOUR + 7 * MINUTE
    assert spending.later(5 * MINUTE, 5 * MINUTE) == ["web"]


def test_a_pod_about_which_the_ledger_has_not_decided_yet_gets_no_notice(spending: Spending) -> None:
    """It was bound since the last tick: whether there is room for it is not known."""
    spending.begin(pod("batch", 0, age_ms=2 * HOUR), team_a=ONE_HOUR + PROTECT)
    spending.turn(MINUTE)
    spending.town.hear("pods", pod("web", 1, labels=SERVING))

    spending.look()

    assert spending.notice("batch") is not None
    assert spending.notice("web") is None


def test_a_protection_that_is_taken_from_the_entry_ends_at_once(spending: Spending) -> None:
    spending.begin(pod("web", 0, labels=SERVING), team_a=ONE_HOUR + PROTECT)
    spending.later(HOUR, HOUR)
    assert spending.notice("web") is None

    spending.town.change("configmaps", budgets(_settings="lookahead: 0s\nevictGrace: 5m", team_a=ONE_HOUR))
    spending.turn(MINUTE)

    assert spending.notice("web") is not None


def test_a_held_pod_with_room_is_released_before_older_ones_however_the_budget_stands(
    holding: Holding,
) -> None:
    batch, web, more = (
        held_pod("batch", created_ms=T0 - HOUR, priority=9),
        held_pod("web", labels=SERVING, created_ms=T0),
        held_pod("more", labels=SERVING, created_ms=T0 + 1),
    )
    holding.begin(batch, web, more, team_a="gpuHours: 0\nonExhausted: hold" + PROTECT)

    assert holding.step() == ["web"]
    holding.town.tick()
    assert holding.step() == []
    assert [each.figures["message"] for each in holding.decisions] == [
        "The budget of namespace team-a protects this pod (protect); it is no longer held."
    ]


def test_a_protected_pod_waits_for_its_turn_all_the_same(holding: Holding) -> None:
    pods = [held_pod(name, labels=SERVING, created_ms=T0 + at) for at, name in enumerate(("a", "b"))]
    entry = "gpuHours: 0\nonExhausted: hold\nmaxWaiting: 1\nprotect: {labels: {tier: serving}, cards: 9}"
    holding.begin(*pods, team_a=entry)

    assert holding.step() == ["a"]
    holding.town.tick()
    assert holding.step() == []


def test_the_event_of_a_spent_budget_says_on_a_protected_pod_that_it_is_protected(town: Town) -> None:
    web = gpu_pod("web", labels=SERVING, started_ms=T0)
    entry = "gpuHours: 1\nonExhausted: reclaim" + PROTECT
    town.begin(
        ("nodes", node()),
        ("configmaps", budgets(_settings="lookahead: 0s", team_a=entry)),
        *(("pods", each) for each in (web, gpu_pod("train", card=1, started_ms=T0))),
    )
    town.advance(HOUR)

    told = {
        each.pod.name: (each.type, each.message) for each in town.pod_notices if each.reason == "OverBudget"
    }

    used = "Namespace team-a has used or reserved 2.00 of 1.00 GPU-hours of its budget."
    kept = "This pod is protected (protect in the entry team-a): it keeps its class and its cards."
    assert told["web"] == ("Normal", f"{used} {kept}")
    assert told["train"][0] == "Warning"
    assert "its running pods are evicted where a pod of a namespace in budget needs" in told["train"][1]
