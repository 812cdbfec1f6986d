"""Answers of the REST API as sheets, and sheets as text."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from timekeeper.accounts.usage import PRICE, ReportQuery
from timekeeper.api import report_formats
from timekeeper.cli import output, top
from timekeeper.cli.client import BILL, FOCUS
from timekeeper.cli.connection import Options
from timekeeper.cli.flags import MINUS
from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.main import cli, grant
from timekeeper.cli.output import Column, CommandError, Sheet
from timekeeper.cli.simulation import _documents, manifest_of, namespace_of
from timekeeper.cli.views import budgets, cards, decisions, simulation, usage
from timekeeper.core import texts
from timekeeper.core.cluster_map import STALE_MS
from timekeeper.core.findings import estimate_sentences
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.texts import NOT_PLACED

HOUR = 3_600_000_000
MIDNIGHT = 1_795_219_200_000  # 2026-11-21T00:00:00Z, a second count by `date -d`


def budget(**changed: Any) -> dict[str, Any]:
    """A budget as ``GET /v1/budgets/team-a`` gives it."""
    return {
        "namespace": "team-a",
        "standing": "IN_BUDGET",
        "onExhausted": "reclaim",
        "period": {"to": MIDNIGHT},
        "granted": 10 * HOUR,
        "posted": 2 * HOUR,
        "pending": HOUR // 2,
        "reserved": HOUR // 100,
        "remaining": 749 * HOUR // 100,
        "exhaustedAt": None,
        "group": None,
        **changed,
    }


@pytest.mark.parametrize(
    ("total", "pod", "said"),
    [
        (None, None, []),
        (0, None, ["team-a takes no new GPU pods, for maxGPUs is 0; running ones go on."]),
        (4_000, 0, ["team-a takes no new GPU pods, for maxGPUsPerPod is 0; running ones go on."]),
        (4_500, None, ["team-a may hold at most 4.5 GPUs at a time."]),
        (4_000, 1_000, ["team-a may hold at most 4 GPUs at a time, and at most 1 a pod."]),
    ],
)
def test_a_budget_with_caps_has_a_sentence(total: int | None, pod: int | None, said: list[str]) -> None:
    assert list(budgets.caps([budget(maxGPUsMilli=total, maxGPUsPerPodMilli=pod)])) == said


def test_a_budget_of_a_server_without_caps_has_none() -> None:
    assert list(budgets.caps([budget()])) == []


def test_a_budget_that_protects_pods_has_a_sentence_with_its_floor() -> None:
    protect = {"cardsMilli": 1_500, "amount": None, "used": 3 * HOUR, "rateMilli": 500}
    hours = protect | {"cardsMilli": None, "amount": 4 * HOUR}

    assert list(budgets.protections([budget(protect=protect), budget(), budget(protect=hours)])) == [
        "team-a protects pods up to 1.5 cards at one time: those that it selects have used 3.00 GPU-hours in"
        " this period; their rate is 0.5.",
        "team-a protects pods up to 4.00 GPU-hours a period: those that it selects have used 3.00 GPU-hours"
        " in this period; their rate is 0.5.",
    ]


def test_a_budget_is_a_row_in_gpu_hours() -> None:
    (row,) = budgets.budgets([budget()], None).rows

    assert (row["granted"], row["used"], row["reserved"], row["remaining"], row["percent"]) == (
        *("10.00", "2.50", "0.01", "7.49", "25%"),
    )
    assert (row["periodEnd"], row["exhaustedAt"], row["group"]) == ("2026-11-21 00:00Z", "", "")


def test_a_namespace_over_budget_and_one_without_a_limit_say_so() -> None:
    over = budget(standing="OVER_BUDGET", exhaustedAt=MIDNIGHT, group={"name": "_group.x"})
    unlimited = budget(standing="UNLIMITED", granted=None, remaining=None, period={"to": None})

    rows = budgets.budgets([over, unlimited], None).rows

    assert [row["exhaustedAt"] for row in rows] == ["exhausted", ""]
    assert [row["granted"] for row in rows] == ["10.00", "unlimited"]
    assert [(row["group"], row["onExhausted"], row["percent"]) for row in rows] == [
        ("_group.x", "reclaim", "25%"),
        ("", "", ""),
    ]


def test_only_a_namespace_without_budget_group_and_use_may_be_misspelled() -> None:
    nothing: dict[str, Any] = {"granted": None, "posted": 0, "pending": 0}
    answers = [
        budget(namespace="typo", **nothing),
        budget(namespace="unused", posted=0, pending=0),
        budget(namespace="member", group={"name": "_group.x"}, **nothing),
        budget(namespace="capped", entry="capped", **nothing),
        *(budget(namespace=spent, **nothing | {spent: 1}) for spent in ("posted", "pending")),
    ]

    assert budgets.unknown(answers) == ["typo"]


def test_usage_shows_the_columns_of_the_answer_and_how_busy_the_cards_were() -> None:
    row = {"namespace": "a", "pod": "p", "uid": "u", "posted": HOUR, "pending": 0, "amount": HOUR}
    measured = {"requested": 2 * HOUR, "measured": HOUR, "used": HOUR // 4, "usedBy": "node"}
    sheet = usage.usage({"rows": [{**row, **measured, "gpuHours": "1", "labels": {}}]})

    assert [column.title for column in sheet.columns] == [
        *("NAMESPACE", "POD", "UID", "GPU-HOURS", "REQUESTED", "BUSY"),
    ]
    assert [sheet.rows[0][column.key] for column in sheet.columns] == ["a", "p", "u", "1.00", "2.00", "25%"]


def test_use_by_label_has_a_row_for_pods_without_it_which_the_table_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of = {"posted": 0, "pending": HOUR, "amount": HOUR, "gpuHours": "1"}
    rows = [{"namespace": "a", **of, "labels": {"a/team": value}} for value in ("", "vision")]
    sheet = usage.usage({"rows": rows})

    output.show(sheet, "table")
    output.show(sheet, "csv")

    table, commas = capsys.readouterr().out.split("namespace,")
    assert [line.split() for line in table.splitlines()] == [
        ["NAMESPACE", "LABEL:A/TEAM", "GPU-HOURS"],
        ["a", "<none>", "1.00"],
        ["a", "vision", "1.00"],
    ]
    assert commas.splitlines() == ["label:a/team,gpuHours", "a,,1.00", "a,vision,1.00"]


@pytest.mark.parametrize(
    ("admitted", "shown"),
    [
        ({"admittedInBudget": True}, "in budget"),
        ({"admittedInBudget": False}, "over budget"),
        ({"admittedInBudget": None}, ""),
        ({}, ""),
    ],
)
def test_a_session_says_whether_its_pod_was_admitted_in_budget(admitted: Any, shown: str) -> None:
    raw = {"uid": "u", "namespace": "a", "pod": "p", "node": "n", "models": "T4", "state": "open"}
    held = {"cards": [], "rateMilli": 0, "ended": None, "vanished": None, "bound": 0, "amount": 0}

    (row,) = usage.sessions([{**raw, **held, **admitted}], None, 0, {}).rows

    assert row["admitted"] == shown


def test_a_session_says_what_it_holds_since_when_and_what_it_cost() -> None:
    raw = {"uid": "u", "namespace": "a", "pod": "p", "node": "n", "models": "T4", "state": "open"}
    held = {"cards": ["x", "y"], "rateMilli": 1250, "ended": None, "vanished": None, "bound": MIDNIGHT}
    three_hours = MIDNIGHT + 3 * 3_600_000 + 60_000
    answer = {"rows": [{"uid": "u", "used": 3, "measured": 4}]}

    (row,) = usage.sessions(
        [{**raw, **held, "amount": HOUR}], None, three_hours, usage.busy_by_pod(answer)
    ).rows

    assert (row["cards"], row["gpus"], row["age"], row["used"], row["gpuHours"]) == (
        *("2", "1.25", "3h1m", "75%", "1.00"),
    )


def test_a_claim_stands_beside_pods_with_its_devices() -> None:
    each: dict[str, Any] = {"namespace": "a", "node": "n", "models": "T4", "state": "open"}
    each |= {"ended": None, "vanished": None, "bound": 0, "amount": 0, "rateMilli": 1000}
    pod = {**each, "uid": "u", "pod": "p", "cards": ["x"], "kind": "pod", "devices": []}
    devices = [{"pool": "n", "device": f"gpu-{n}", "share": "s" * n, "admin": n > 1} for n in range(3)]
    claim = {**each, "uid": "c:claim:1", "pod": "c", "cards": [], "kind": "claim", "devices": devices}

    alone, both = (usage.sessions(listed, None, 0, {}) for listed in ([pod], [pod, claim]))

    assert [(row["pod"], row["cards"], row["devices"]) for row in both.rows] == [
        ("p", "1", ""),
        ("claim/c", "3", "n/gpu-0,n/gpu-1:share,n/gpu-2:admin"),
    ]
    assert [column.key for column in both.columns] == [*(column.key for column in alone.columns), "devices"]
    assert (top.held(alone), top.held(both)) == (
        "1 pod holds cards",
        "1 pod holds cards, 1 claim holds devices",
    )


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (61_000, "1m1s"), (3_600_000, "1h0m"), (90_000_000, "1d1h"), (-5, "0s")],
)
def test_ages(milliseconds: int, text: str) -> None:
    assert texts.age(milliseconds) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "0.00"), (HOUR // 1000, "0.001"), (-HOUR, "-1.00")])
def test_small_and_negative_hours_are_shown_as_what_they_are(amount: int, text: str) -> None:
    assert texts.hours(amount) == text


SHEET = Sheet(
    (Column("pod", "POD"), Column("hours", "GPU-HOURS", True)),
    ({"pod": "=cmd()", "hours": "-1"}, {"pod": "x\x1b[31m", "hours": "22.5"}),
)


def test_csv_has_no_formula_of_a_tenant_and_keeps_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(SHEET, "csv")

    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows == [["pod", "hours"], ["'=cmd()", "-1"], ["x\x1b[31m", "22.5"]]


def test_a_table_has_no_control_characters_is_aligned_and_is_not_wrapped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "p" * 300
    output.show(Sheet(SHEET.columns, (*SHEET.rows, {"pod": long, "hours": "1"})), "table")

    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert lines[0].split() == ["POD", "GPU-HOURS"]
    assert lines[2].startswith("x?[31m ")
    assert len({len(line) for line in lines}) == 1, "numbers end in one column"
    assert lines[3].startswith(long)


def test_json_and_yaml_are_the_apis_answer(capsys: pytest.CaptureFixture[str]) -> None:
    sheet = Sheet(SHEET.columns, SHEET.rows, {"granted": 3, "pod": "ü"})

    output.show(sheet, "json")
    assert json.loads(capsys.readouterr().out) == {"granted": 3, "pod": "ü"}
    output.show(sheet, "yaml")
    assert capsys.readouterr().out == "granted: 3\npod: ü\n"


def test_an_empty_sheet_is_a_sentence_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(Sheet(SHEET.columns, (), empty="no pod holds a card"), "table")

    assert capsys.readouterr() == ("", "No pod holds a card.\n")


CARD = {"uuid": "GPU-1", "index": 0, "model": "T4", "memory_mib": 16_000, "healthy": True, "cordoned": False}


def test_a_card_is_a_row_with_bars_and_the_pods_on_it() -> None:
    pods = [{"namespace": "a", "name": f"p{at}", "held": "bound" if at else "assumed"} for at in range(6)]
    used = {
        **CARD,
        "used_share_milli": 501,
        "used_memory_mib": 4000,
        "pods": pods,
        "more_pods": 3,
        "healthy": False,
    }
    nodes = [
        {"name": "n", "closed": "", "cards": [used]},
        {"name": "shut", "closed": "two plugins", "cards": []},
    ]

    first, second = cards.cards(nodes, None).rows

    assert (first["compute"], first["memory"], first["memoryMiB"]) == (
        *("██████····  50%", "███·······  25%", "4000/16000"),
    )
    assert first["pods"] == "a/p0 (assumed), a/p1, a/p2, a/p3 and 5 more"
    assert (first["state"], second["state"]) == ("unhealthy", "closed: two plugins")


def test_a_node_without_an_inventory_has_a_row_with_what_it_offers() -> None:
    plugins: dict[str, Any] = {"name": "n", "closed": "", "cards": [], "undescribed": "nvidia.com/gpu 8"}

    assert cards.cards([plugins], None).rows == ({"node": "n", "state": "no inventory: nvidia.com/gpu 8"},)


def test_what_is_held_without_a_cards_name_has_a_row_of_the_node() -> None:
    free = {**CARD, "used_share_milli": 0, "used_memory_mib": 0, "pods": [], "more_pods": 0}
    node = {"name": "n", "closed": "", "cards": [free] * 8, "unnamed": 2}

    *rows, last = cards.cards([node], None).rows

    assert len(rows) == 8
    state = "2 of 8 cards are held, and the node's plugin alone knows which"
    assert last == {"node": "n", "state": state}


@pytest.mark.parametrize(
    ("used", "text"), [(0, "··········   0%"), (1, "█·········   0%"), (1200, "██████████ 120%")]
)
def test_bars(used: int, text: str) -> None:
    assert cards.bar(used, 1000) == text


def test_a_waiting_pod_says_since_when_and_why_it_waits() -> None:
    raw: dict[str, Any] = {"namespace": "a", "name": "p", "priority": 5, "standing": "IN_BUDGET"}
    raw |= {"state": "refused", "created": MIDNIGHT, "reason": "no card has 50 percent free"}

    (row,) = cards.waiting([raw], None, MIDNIGHT + 90_000, "a").rows

    assert (row["age"], row["reason"]) == ("1m30s", "no card has 50 percent free")
    states = ("refused", "not-asked", "gated", "reserved", "assumed", "of-a-later-release")
    rows = cards.waiting([{**raw, "state": state} for state in states], None, MIDNIGHT, "a").rows
    assert [row["state"] for row in rows] == [
        *("no cards fit", "no node fits", "held by a gate", "cards reserved", "being bound"),
        "of-a-later-release",
    ]
    assert cards.waiting([], None, 0, None).empty == "no GPU pod is listed"
    assert cards.waiting([], None, 0, "a").empty == "no GPU pod is listed in namespace a (-A looks at all)"
    assert cards.waiting([], None, 0, None, "p").empty.startswith("no GPU pod p is listed: it is bound, or")


@pytest.mark.parametrize(
    ("posted", "total", "warning"),
    [
        (1, 1, ""),
        (1, 4, "1 of 4 waiting pods are listed: "),
        (1, None, "Not all waiting pods are listed: "),
        (None, None, ""),
    ],
)
def test_pods_that_wait_beside_those_listed_are_counted(
    posted: int | None, total: int | None, warning: str
) -> None:
    said = cards.unlisted_warning({"posted": posted, "total": total, "pods": [{}]})

    assert said == (warning and f"{warning}kubectl bursar explain POD says why another one waits.")


def test_a_map_without_a_post_of_this_minute_says_so() -> None:
    assert cards.post_warning(MIDNIGHT, MIDNIGHT + STALE_MS) == ""
    assert (
        cards.post_warning(MIDNIGHT, MIDNIGHT + 90_000) == "This is old: the extender posted last 1m30s ago."
    )
    assert cards.post_warning(None, MIDNIGHT).startswith("Nothing is known: no extender has posted nodes")


def test_a_kind_of_decision_that_is_unknown_is_named_with_the_known_ones() -> None:
    assert decisions.decisions([], [], "refused").empty == "no decision was recorded"
    said = decisions.decisions([], [], "refuse").empty
    assert said.startswith("no decision was recorded; refuse is none of the kinds refused, ")


def test_the_life_of_a_pod_is_shown_oldest_first_with_what_it_waits_for_last() -> None:
    step = {
        "last": MIDNIGHT,
        "first": MIDNIGHT - 3_600_000,
        "count": 3,
        "pod": "a",
        "sentence": "Refused: a.",
    }
    once = {**step, "count": 1, "sentence": "Placed."}
    charge = {"bound": MIDNIGHT, "pod": "a", "sentence": "Charged 1."}
    subject = {"namespace": "team-a", "subject": "Pod/a"}
    answer = {"steps": [step, once], "charges": [charge], "waitsFor": ["A grant."], "budget": "Spent."}
    answer |= subject

    sheet = decisions.life(answer)

    assert [column.title for column in sheet.columns] == ["WHEN", "WHAT"]
    of_job = decisions.life({**answer, "subject": "Job/train"})
    assert [column.title for column in of_job.columns] == ["WHEN", "POD", "WHAT"]
    assert of_job.rows[2]["pod"] == "a"
    unknown = decisions.life({**answer, "steps": [], "charges": [], "waitsFor": [NOT_PLACED]})
    assert unknown.rows[0]["what"] == (
        "Nothing is recorded about Pod/a in team-a: see whether name and namespace are right."
    )
    claim = decisions.life({**answer, "steps": [], "charges": [], "subject": "ResourceClaim/a"})
    assert [row["what"] for row in claim.rows] == ["A grant.", "Spent."]
    assert [(row["when"], row["what"]) for row in sheet.rows] == [
        ("2026-11-21 00:00Z", "Refused: a. (3 times since 2026-11-20 23:00Z)"),
        ("2026-11-21 00:00Z", "Placed."),
        ("2026-11-21 00:00Z", "Charged 1."),
        ("now", "A grant."),
        ("now", "Spent."),
    ]
    assert sheet.answer is answer
    spent = decisions.life({**answer, "waitsFor": ["Spent."]})
    assert [row["what"] for row in spent.rows][-2:] == ["Charged 1.", "Spent."]


def test_a_held_pod_says_its_place_and_when_it_is_released_at_the_earliest() -> None:
    raw = {"namespace": "a", "pod": "p", "waitsFor": "budget", "ahead": 2, "priority": 0, "rateMilli": 500}
    raw |= {"created": MIDNIGHT, "gang": ""}

    soon, never = decisions.held(
        [{**raw, "earliest": MIDNIGHT}, {**raw, "earliest": None}], None, MIDNIGHT + 60_000, "a"
    ).rows

    assert (soon["ahead"], soon["gpus"], soon["age"], soon["earliest"]) == (
        "2",
        "0.5",
        "1m0s",
        "2026-11-21 00:00Z",
    )
    assert never["earliest"] == "not by this budget"


def simulated_pod(name: str, **fields: Any) -> dict[str, Any]:
    """A pod of a simulation's answer."""
    pod = {
        **{
            "name": name,
            "outcome": "fits",
            "refusal": "",
            "held": "",
            "nodesThatFit": 1,
            "priorityClass": "gpu-default-priority",
        },
        **{"node": "gpu-1", "cards": [{"index": 0}, {"index": 2}], "victims": [], "reasons": []},
        **{"hasUnreadConstraints": False, "cost": {"rateMilli": 2000}},
    }
    return pod | fields


def test_a_simulation_shows_pods_and_says_what_they_cost() -> None:
    hidden = {"namespace": None, "name": None}
    answer = {
        "pods": [
            simulated_pod(
                "one",
                outcome="preempts",
                kind="reclaim",
                victims=[{"namespace": "team-b", "name": "low"}, hidden],
            ),
            simulated_pod("two", outcome="waits", reasons=[{"reason": "no room", "nodes": 3}], held="budget"),
        ],
        "cost": {"gpuHoursPerDay": "48", "price": "96", "currency": "EUR"},
        "before": {"namespace": "team-a", "to": None, "now": {"goneAt": None}},
        "after": {"namespace": "_group.lab", "to": None, "now": {"goneAt": MIDNIGHT}},
        "note": "",
    }

    one, two = simulation.pods(answer).rows

    assert (one["cards"], one["victims"]) == ("0,2", "team-b/low, a pod of another namespace")
    assert one["why"] == "2 pods leave for it, by reclaim"
    assert (two["outcome"], two["why"]) == (
        "held, then waits",
        "it is held until its budget pays for it; 3 nodes: no room",
    )
    assert list(simulation.sentences(answer)) == [
        "Cost of a day: 48 GPU-hours, 96 EUR.",
        "The budget of team-a is never gone as things are,"
        " and that of _group.lab is gone at 2026-11-21 00:00Z with these pods.",
    ]
    answer["after"] = {"namespace": "team-a", "to": MIDNIGHT, "now": {"goneAt": None}}
    assert list(simulation.sentences(answer))[1].endswith(
        " and that of team-a lasts until its period ends at 2026-11-21 00:00Z with these pods."
    )


def manifests(folder: Path, *documents: object) -> str:
    """A file with these documents."""
    (folder / "manifests.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    return str(folder / "manifests.yaml")


def test_one_manifest_of_a_file_is_simulated_with_the_claims_beside_it(tmp_path: Path) -> None:
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}}
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c"}}
    job = {"kind": "Job", "metadata": {"name": "train"}}

    assert manifest_of(manifests(tmp_path, template, None, job, claim)) == (job, [template, claim])
    for others in ([], [job, "text"]):
        with pytest.raises(
            CommandError, match=f"{len(others)} manifests beside claims, and one is simulated"
        ):
            manifest_of(manifests(tmp_path, claim, *others))


@pytest.mark.parametrize("text", ["2026-01-01: x", "? [a]\n: b", "a: &a [*a]"])
def test_yaml_that_json_cannot_say_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(text)

    with pytest.raises(CommandError, match=r"that JSON cannot say|is not YAML"):
        list(_documents(str(tmp_path / "odd.yaml")))


@pytest.mark.parametrize(
    ("manifest", "flag", "namespace"),
    [
        ({"metadata": {"namespace": "team-b"}}, "", "team-b"),
        ({"metadata": {"namespace": "team-b"}}, "team-a", "team-a"),
        ({"metadata": {"namespace": None}}, "", "mine"),
        ({"metadata": 3}, "", "mine"),
        ("text", "", "mine"),
    ],
)
def test_a_simulation_is_of_the_namespace_that_the_manifest_names(
    manifest: object, flag: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kubectl, "namespace", lambda _self: "mine")

    assert namespace_of(manifest, Options(Kubectl(), namespace=flag)) == namespace


BILLED = """from,to,namespace,owner,price,currency,posted,pending,amount,gpuHours,cost,requested,measured,used
2026-11-01T00:00:00Z,2026-11-22T11:00:35.001Z,team-a,Job/x,2.5,EUR,1,1,9000000000,2.5,6.25,9000000000,100,40
2026-11-01T00:00:00Z,2026-11-22T11:00:35.001Z,team-b,,,EUR,0,127774000,127774000,0.035492777778,,0,0,0
"""


def test_the_bill_has_hours_price_and_cost_for_people_and_every_column_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sheet = usage.report(BILLED)

    assert [each.title for each in sheet.columns] == [
        *("FROM", "TO", "NAMESPACE", "OWNER", "GPU-HOURS", "PRICE", "COST", "CURRENCY", "REQUESTED", "BUSY")
    ]
    first, second = ([row[each.key] for each in sheet.columns] for row in sheet.rows)
    period = ["2026-11-01 00:00Z", "2026-11-22 11:00Z"]
    assert first == [*period, "team-a", "Job/x", "2.50", "2.5", "6.25", "EUR", "2.50", "40%"]
    assert second == [*period, "team-b", "", "0.035", "", "", "", "0.00", ""]
    small = usage.report(BILLED.replace(",6.25,", ",0.014793055556,"))
    assert small.rows[0]["cost"] == "0.015"
    output.show(sheet, "json")
    assert json.loads(capsys.readouterr().out)["items"][1]["pending"] == "127774000"


def total_lines(bill: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The cells of a bill's table below its rows."""
    sheet = usage.report(bill)
    output.show(sheet, "table")
    return [line.split() for line in capsys.readouterr().out.splitlines()[1 + len(sheet.rows) :]]


def test_the_bill_ends_with_its_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert total_lines(BILLED, capsys) == [["TOTAL", "2.54", "6.25", "EUR", "2.50", "40%"]]
    assert usage.report(BILLED.splitlines()[0]).totals == ()


@pytest.mark.parametrize("columns", ["namespace", "models,label:team", "namespace,pod,uid,owner,node,models"])
def test_the_total_stands_below_every_grouping_under_no_name(
    columns: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bill = BILLED.replace("namespace,owner", columns)
    for cells in ("team-a,Job/x", "team-b,"):
        bill = bill.replace(cells, ",".join("" for _ in columns.split(",")))

    assert total_lines(bill, capsys) == [["TOTAL", "2.54", "6.25", "EUR", "2.50", "40%"]]


def test_the_total_has_a_cost_in_each_currency_and_one_sum_of_hours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_dollars = BILLED.splitlines()[1].replace("2.5,EUR", "2,USD").replace(",6.25,", ",5.000000000001,")
    bill = f"{BILLED}{BILLED.splitlines()[1]}\n{in_dollars}\n"

    assert total_lines(bill, capsys) == [["TOTAL", "7.54", "12.50", "EUR", "7.50", "40%"], ["5.00", "USD"]]
    output.show(usage.report(bill), "json")
    assert json.loads(capsys.readouterr().out)["total"] == {
        **{"posted": "3", "pending": "127774003", "amount": "27127774000", "gpuHours": "7.535492777778"},
        **{"requested": "27000000000", "measured": "300", "used": "120"},
        "costs": [{"cost": "12.5", "currency": "EUR"}, {"cost": "5.000000000001", "currency": "USD"}],
    }


def test_csv_has_no_total_that_could_be_taken_for_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(usage.report(BILLED), "csv")

    assert len(capsys.readouterr().out.splitlines()) == len(BILLED.splitlines())


def test_figures_in_gpu_hours_have_the_names_of_the_api_s_csv() -> None:
    row = {"namespace": "a", **dict.fromkeys(("amount", "requested", "measured", "used", "stranded"), HOUR)}
    sheet = usage.usage({"rows": [row]})

    named = {each.key for each in sheet.columns if each.key.endswith("Hours")}
    asked = ReportQuery(
        span=Interval(0, 1), columns=("namespace", *PRICE), now_ms=1, with_use=True, with_stranded=True
    )
    assert named == {"gpuHours", "requestedGpuHours", "strandedGpuHours"}
    assert set(report_formats.columns(asked)) >= named | BILL
    assert set(report_formats.NAMES) >= FOCUS


def test_the_bill_has_the_columns_that_it_is_grouped_by() -> None:
    by_label = usage.report(BILLED.replace("namespace,owner", "models,label:team"))

    titles = [each.title for each in by_label.columns]
    assert titles[2:5] == ["MODELS", "LABEL:TEAM", "GPU-HOURS"]
    assert by_label.rows[1]["models"] == "team-b"


@pytest.mark.parametrize("amount", ["-1", "-0.5", "2"])
def test_a_negative_amount_is_no_option(amount: str) -> None:
    context = grant.make_context("grant", ["team-a", amount, "--group", "research", "--reason", "x"])

    assert context.params["gpu_hours"].replace(MINUS, "-") == amount
    with pytest.raises(click.NoSuchOption):
        grant.make_context("grant", ["team-a", "1", "-x", "--reason", "x"])


def test_the_list_of_commands_has_a_whole_line_for_each() -> None:
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output

    lines = shown.partition("Commands:\n")[2].splitlines()
    assert len(lines) == len(cli.commands)
    assert [each for each in lines if "..." in each or len(each.split()) < 3] == []


@pytest.mark.parametrize(
    "arguments", [["team-a", "-A"], ["team-a", "--group", "lab"], ["-A", "--group", "lab"]]
)
def test_grants_are_of_one_account_a_group_s_split_or_of_all(arguments: list[str]) -> None:
    shown = CliRunner().invoke(cli, ["grants", *arguments])

    assert (shown.exit_code, "exclude each other" in shown.output) == (2, True)


def test_each_row_of_an_estimate_says_so() -> None:
    row = {"namespace": "team-a", "group": "", "models": "A100", "amount": 2 * HOUR, "gpuHours": "2"}
    row |= {"price": "1.5", "currency": "EUR", "cost": "3"}
    budget = {"subject": "team-a", "period": "month", "granted": HOUR, "amount": 2 * HOUR, "left": -HOUR}
    times = {"from": MIDNIGHT - 86_400_000, "to": MIDNIGHT, "stepMs": 1_800_000, "knownMs": 43_200_000}
    answer = {"rows": [row], "budgets": [budget | {"spentAt": MIDNIGHT}], "findings": ["none"], **times}

    (shown,) = usage.estimated(answer).rows
    assert (shown["estimated"], shown["gpuHours"], shown["cost"]) == ("estimated", "2.00", "3.00")
    (left,) = usage.estimated_budgets(answer).rows
    assert (left["estimated"], left["left"], left["spentAt"]) == (
        *("estimated", "-1.00", "2026-11-21 00:00Z"),
    )
    assert list(estimate_sentences(answer)) == [
        "Estimated, not charged: from 2026-11-20 00:00Z to 2026-11-21 00:00Z, where the ledger begins;"
        " each sample stands for 30 minutes",
        "There are samples for 50% of this time; the rest is unknown, not zero",
        "none",
    ]


def test_what_would_have_happened_counts_the_weeks_new_pods_and_says_what_is_not_known() -> None:
    row = {"week": "2026-W47", "namespace": "team-a", "rule": "host-pid", "pod": "p", "sentence": "why"}
    answer = {
        "rows": [
            row | {"verdict": "refused", "pods": 12, "of": 340},
            row | {"verdict": "evicted", "rule": "", "pods": 2, "of": 340},
            row | {"verdict": "unjudged", "rule": "", "pods": 1, "of": 340},
        ],
        "enforced": ["team-b"],
        "notes": ["Exempt users are not known."],
        "next": "x",
    }

    rows = decisions.would(answer, None).rows

    assert [(each["verdict"], each["rule"], each["shown"]) for each in rows] == [
        ("refused", "host-pid", "12 of 340"),
        ("evicted", "", "2"),
        ("not judged", "", "1 of 340"),
    ]
    assert list(decisions.would_notes(answer)) == [
        "Not metered now, so nothing is shown: team-b. Enforced ones have decisions (kubectl bursar"
        " decisions); deleted ones have none.",
        "Exempt users are not known.",
        "There are more rows: --from and --to, or a namespace, choose some.",
    ]


def test_a_budget_without_placement_says_what_reclaim_comes_to() -> None:
    off, on = budgets.budgets([budget(placement="off"), budget(placement="on")], None).rows

    assert (off["onExhausted"], on["onExhausted"]) == (
        "reclaim, as deprioritize: placement is off",
        "reclaim",
    )


def test_a_budget_has_its_mode_and_a_mode_that_enforces_nothing_says_what_follows() -> None:
    found = [
        budget(mode="enforce", modeFrom="cluster"),
        budget(mode="observe", modeFrom="label"),
        budget(mode="observe", modeFrom="entry"),
        budget(namespace="_group.lab", mode=None, modeFrom=None),
        budget(),  # of an older timekeeper
    ]

    rows = budgets.budgets(found, None).rows

    assert [each["mode"] for each in rows] == [
        *("enforce (cluster)", "observe (label)", "observe (entry)", "", "")
    ]
    assert list(budgets.modes(found)) == [
        "In mode observe pods are charged, users are warned, and no pod is refused, demoted or changed."
    ]


def test_an_explanation_ends_with_the_mode_of_the_namespace() -> None:
    answer = {
        **{"subject": "Pod/p", "namespace": "team-a", "steps": [], "charges": [], "waitsFor": []},
        **{"budget": "team-a is unlimited", "mode": "team-a is in mode meter"},
    }

    assert [each["what"] for each in decisions.life(answer).rows][1:] == [
        *("team-a is unlimited", "team-a is in mode meter")
    ]
