"""The standings document from entries that are kept: the same bytes as from none, and no larger a stream of
them than the database can bear."""

import json
import random

import pytest

from tests.timekeeper.worlds import GPU, SECOND, T0
from timekeeper.accounts.balance import BalanceFigures, Statement, statement, untouched
from timekeeper.accounts.budget_history import BudgetEntry, History, history_of
from timekeeper.accounts.standings import EntryCache, StandingsDocument, publish
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.claims.drivers import DeviceComparison, DriverRule
from timekeeper.core.standings import UndecodableStandingsError, driver_rules, held_by_claims

CLASSES = {"gpu-default-priority": (0, "PreemptLowerPriority", False)}


def history(namespaces: int) -> History:
    names = (f"team-{at}" for at in range(namespaces))
    return history_of(BudgetEntry(name, "gpuHours: 1\nperiod: month", 0) for name in names)


def spent(known: History, name: str, amount: int) -> Statement:
    return statement(known, name, BalanceFigures(granted=3_600_000_000, posted=amount), T0)


def published(
    known: History,
    told: dict[str, Statement],
    now_ms: int = T0,
    last: StandingsDocument | None = None,
    entries: EntryCache | None = None,
) -> StandingsDocument:
    return publish(BudgetSettings(), CLASSES, untouched(known, T0, {}), told, now_ms, last, entries)


def test_the_document_is_canonical_json() -> None:
    known = history(3)
    body = published(known, {name: spent(known, name, 7) for name in ("team-2", "team-0")}).body

    document = json.loads(body)

    assert body == json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    assert list(document["namespaces"]) == ["team-0", "team-2"]
    assert (document["version"], document["generated"]) == (1, T0)
    assert len(document["revision"]) == 32


def test_kept_entries_make_the_document_that_new_ones_make() -> None:
    known, chance, entries = history(20), random.Random(5), EntryCache()
    told = {f"team-{at}": spent(known, f"team-{at}", 0) for at in range(20)}
    last: StandingsDocument | None = None
    for step in range(40):
        name = f"team-{chance.randrange(20)}"
        if chance.random() < 0.2:
            told.pop(name, None)
        else:
            told[name] = spent(known, name, chance.randrange(2 * 3_600_000_000))
        now_ms = T0 + step * SECOND

        last = published(known, dict(told), now_ms, last, entries)

        anew = published(known, dict(told), now_ms)
        assert (last.content_digest, last.text_digest) == (anew.content_digest, anew.text_digest)
        assert json.loads(last.body)["namespaces"] == json.loads(anew.body)["namespaces"]


def test_numbers_of_a_large_document_wait_and_its_words_do_not() -> None:
    many = 1_500  # some 400 KB
    known, entries = history(many), EntryCache()
    told = {f"team-{at}": spent(known, f"team-{at}", 0) for at in range(many)}
    first = published(known, told, T0, None, entries)
    told["team-7"] = spent(known, "team-7", 10 * GPU * SECOND)

    assert published(known, told, T0 + SECOND - 1, first, entries) is first
    second = published(known, told, T0 + SECOND, first, entries)
    assert second.revision != first.revision
    told["team-7"] = spent(known, "team-7", 3_600_000_000)
    third = published(known, told, T0 + SECOND, second, entries)

    assert json.loads(third.body)["namespaces"]["team-7"]["standing"] == "OVER_BUDGET"
    assert published(known, told, T0 - SECOND, third, entries) is not second


def test_which_account_decides_is_published_like_a_number() -> None:
    """It changes with charges: a large document does not have to be written for it at once."""
    known = history_of(
        BudgetEntry(key, text, 0)
        for key, text in (("team-a", "gpuHours: 1\ngroup: lab"), ("_group.lab", "gpuHours: 2"))
    )
    whole = 3_600_000_000

    def told(posted: int) -> dict[str, Statement]:
        group = statement(known, "_group.lab", BalanceFigures(granted=2 * whole, posted=posted), T0)
        return {"team-a": statement(known, "team-a", BalanceFigures(granted=whole), T0, group)}

    first = published(known, told(0))
    second = published(known, told(whole + whole // 2), T0 + SECOND, first)

    decides = [json.loads(each.body)["namespaces"]["team-a"].get("groupDecides") for each in (first, second)]
    assert decides == [None, True]
    assert first.text_digest == second.text_digest
    assert first.content_digest != second.content_digest


def test_what_the_group_has_left_is_published_where_the_namespace_has_less() -> None:
    """Webhooks bound a burst of several namespaces by it. It is a number, as `remaining` is."""
    whole = 3_600_000_000

    def document(mode: str, posted: int, last: StandingsDocument | None = None) -> StandingsDocument:
        entries = {"team-a": "gpuHours: 1\ngroup: lab", "_group.lab": f"gpuHours: 2\nonExhausted: {mode}"}
        known = history_of(BudgetEntry(key, text, 0) for key, text in entries.items())
        group = statement(known, "_group.lab", BalanceFigures(granted=2 * whole, posted=posted), T0)
        stated = statement(known, "team-a", BalanceFigures(granted=whole), T0, group)
        return published(known, {"team-a": stated}, T0 + posted // whole, last)

    first = document("deny", 0)
    less, other = document("deny", whole // 10, first), document("hold", 0, first)

    left = [json.loads(made.body)["namespaces"]["team-a"].get("groupLeft") for made in (first, less, other)]
    assert left == [
        {"remaining": 2 * whole, "onExhausted": "deny"},
        {"remaining": 2 * whole - whole // 10, "onExhausted": "deny"},
        {"remaining": 2 * whole, "onExhausted": "hold"},
    ]
    assert first.text_digest == less.text_digest


def test_caps_of_namespace_and_group_are_published_where_they_are_set() -> None:
    known = history_of(
        [
            BudgetEntry("team-a", "gpuHours: 1\ngroup: lab\nmaxGPUs: 2.5", 0),
            BudgetEntry("team-b", "gpuHours: 1", 0),
            BudgetEntry("_group.lab", "gpuHours: unlimited\nmaxGPUsPerPod: 0.125", 0),
            BudgetEntry("_defaults", "gpuHours: unlimited\nmaxGPUs: 0", 0),
        ]
    )
    lab = statement(known, "_group.lab", BalanceFigures(), T0)
    told = {
        "team-a": statement(known, "team-a", BalanceFigures(), T0, lab),
        "team-b": spent(known, "team-b", 0),
    }

    document = json.loads(published(known, told).body)

    a, b = document["namespaces"]["team-a"], document["namespaces"]["team-b"]
    assert (a["group"], a["caps"], a["groupCaps"]) == (
        "lab",
        {"total": 2_500, "pod": None},
        {"total": None, "pod": 125},
    )
    assert {"caps", "groupCaps"}.isdisjoint(b)
    assert document["default"]["caps"] == {"total": 0, "pod": None}


RULES = (
    DriverRule("train.example.com", where=(DeviceComparison("kind", "=", ("train", "infer")),)),
    DriverRule("gpu.example.com"),
    DriverRule("nic.example.com", has_gpus=False),
)


def test_which_devices_are_gpus_is_published_and_read_as_the_same() -> None:
    document = publish(BudgetSettings(drivers=RULES), CLASSES, untouched(history(0), T0, {}), {}, T0, None)

    assert set(driver_rules(json.loads(document.body)["settings"])) == set(RULES)


def test_an_older_document_has_no_rules_of_drivers_or_says_only_which_have_gpus() -> None:
    assert driver_rules({}) == ()
    assert driver_rules({"drivers": {"gpu.example.com": True}}) == (DriverRule("gpu.example.com"),)


@pytest.mark.parametrize("comparison", [7, None, "kind"])
def test_rules_that_cannot_be_read_are_no_table(comparison: object) -> None:
    with pytest.raises(UndecodableStandingsError):
        driver_rules({"drivers": {"a": True}, "gpuDevices": {"a": [comparison]}})


def test_what_claims_hold_is_published_where_a_cap_counts_it() -> None:
    known = history_of(
        [
            BudgetEntry("team-a", "gpuHours: 1\nmaxGPUs: 2", 0),
            BudgetEntry("team-b", "gpuHours: 1\ngroup: lab", 0),
            BudgetEntry("team-c", "gpuHours: 1", 0),
            BudgetEntry("_group.lab", "gpuHours: unlimited\nmaxGPUs: 4", 0),
        ]
    )
    lab = statement(known, "_group.lab", BalanceFigures(), T0)
    told = {name: spent(known, name, 0) for name in ("team-a", "team-c")}
    told["team-b"] = statement(known, "team-b", BalanceFigures(), T0, lab)
    default, entries = untouched(known, T0, {}), EntryCache()
    claims = {"team-a": 1_500, "team-b": 250, "team-c": 1_000}

    first = publish(BudgetSettings(), CLASSES, default, told, T0, None, entries, claims=claims)
    same = publish(BudgetSettings(), CLASSES, default, told, T0, first, entries, claims=dict(claims))
    second = publish(BudgetSettings(), CLASSES, default, told, T0, first, entries, claims={"team-b": 250})

    found = json.loads(first.body)["namespaces"]
    assert {name: held_by_claims(each) for name, each in found.items()} == {
        "team-a": 1_500,
        "team-b": 250,
        "team-c": 0,
    }
    assert same is first
    assert "heldByClaims" not in json.loads(second.body)["namespaces"]["team-a"]
    assert second.text_digest == first.text_digest  # of a large document, numbers wait


def test_an_older_document_says_nothing_of_claims_and_a_wrong_one_is_no_table() -> None:
    assert held_by_claims({}) == 0
    with pytest.raises(UndecodableStandingsError):
        held_by_claims({"heldByClaims": "1"})
