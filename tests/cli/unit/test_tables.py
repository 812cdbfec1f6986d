"""Sheets as text, the bill, and what commands read."""

import csv
import io
import json
import os
import pty
import re
import termios
from contextlib import redirect_stdout
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from timekeeper.accounts.usage import PRICE, ReportQuery
from timekeeper.api import report_formats
from timekeeper.api.sheets.focus import FOCUS as FOCUS_SHEET
from timekeeper.api.sheets.usage import REPORT, USAGE
from timekeeper.cli import output, top
from timekeeper.cli.bill import bill as bill_of
from timekeeper.cli.client import BILL, FOCUS
from timekeeper.cli.connection import Options
from timekeeper.cli.flags import MINUS, TIME
from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.main import cli, grant
from timekeeper.cli.output import CommandError, PrintedColumn, PrintedSheet, show
from timekeeper.cli.simulation import _documents, manifests_of, namespace_of
from timekeeper.core import texts
from timekeeper.core.ledger.metering import Interval

HOUR = 3_600_000_000
MIDNIGHT = 1_795_219_200_000  # 2026-11-21T00:00:00Z, a second count by `date -d`


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (61_000, "1m1s"), (3_600_000, "1h0m"), (90_000_000, "1d1h"), (-5, "0s")],
)
def test_ages(milliseconds: int, text: str) -> None:
    assert texts.age(milliseconds) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "0.00"), (HOUR // 1000, "0.001"), (-HOUR, "-1.00")])
def test_small_and_negative_hours_are_shown_as_what_they_are(amount: int, text: str) -> None:
    assert texts.hours(amount) == text


SHEET = PrintedSheet(
    (PrintedColumn("pod", "POD"), PrintedColumn("hours", "GPU-HOURS", True)),
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
    output.show(PrintedSheet(SHEET.columns, (*SHEET.rows, {"pod": long, "hours": "1"})), "table")

    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert lines[0].split() == ["POD", "GPU-HOURS"]
    assert lines[2].startswith("x?[31m ")
    assert len({len(line) for line in lines}) == 1, "numbers end in one column"
    assert lines[3].startswith(long)


def test_json_and_yaml_are_the_apis_answer(capsys: pytest.CaptureFixture[str]) -> None:
    sheet = PrintedSheet(SHEET.columns, SHEET.rows, {"granted": 3, "pod": "ü"})

    output.show(sheet, "json")
    assert json.loads(capsys.readouterr().out) == {"granted": 3, "pod": "ü"}
    output.show(sheet, "yaml")
    assert capsys.readouterr().out == "granted: 3\npod: ü\n"


def test_an_empty_sheet_is_a_sentence_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(PrintedSheet(SHEET.columns, (), empty="no pod holds a card"), "table")

    assert capsys.readouterr() == ("", "No pod holds a card.\n")


CARD = {"uuid": "GPU-1", "index": 0, "model": "T4", "memory_mib": 16_000, "healthy": True, "cordoned": False}


def manifests(folder: Path, *documents: object) -> str:
    """A file with these documents."""
    (folder / "manifests.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    return str(folder / "manifests.yaml")


def test_each_manifest_of_a_file_is_simulated_with_the_claims_beside_it(tmp_path: Path) -> None:
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}}
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c"}}
    job = {"kind": "Job", "metadata": {"name": "train"}}

    pod = {"kind": "Pod", "metadata": {"name": "p"}}
    read = manifests_of(manifests(tmp_path, template, None, job, claim, pod))

    assert read == ([job, pod], [template, claim])
    with pytest.raises(CommandError, match="has no manifest of a pod"):
        manifests_of(manifests(tmp_path, claim))


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


BILLED = """\
from,to,namespace,owner,price,currency,posted,pending,amount,gpuHours,cost,requested,measured,used,unused
2026-11-01T00:00:00Z,2026-11-22T11:00:35.001Z,team-a,Job/x,2.5,EUR,1,1,9000000000,2.5,6.25,9000000000,100,40,60
2026-11-01T00:00:00Z,2026-11-22T11:00:35.001Z,team-b,,,EUR,0,127774000,127774000,0.035492777778,,0,0,0,0
"""


def test_the_bill_has_hours_price_and_cost_for_people_and_every_column_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sheet = bill_of(BILLED)

    assert [each.title for each in sheet.columns] == [
        *(
            "MONTH",
            "NAMESPACE",
            "OWNER",
            "GPU-HOURS",
            "PRICE",
            "COST",
            "CURRENCY",
            "BUSY",
            "REQUESTED, UNWEIGHTED",
        )
    ]
    first, second = ([row[each.key] for each in sheet.columns] for row in sheet.rows)
    assert first == ["2026-11", "team-a", "Job/x", "2.50", "2.5", "6.25", "EUR", "40%", "2.50"]
    assert second == ["2026-11", "team-b", None, "0.035", "", "", "", "", "0.00"]
    small = bill_of(BILLED.replace(",6.25,", ",0.014793055556,"))
    assert small.rows[0]["cost"] == "0.015"
    output.show(sheet, "json")
    assert json.loads(capsys.readouterr().out)["items"][1]["pending"] == "127774000"


def total_lines(bill: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The cells of a bill's table below its rows."""
    sheet = bill_of(bill)
    output.show(sheet, "table")
    return [line.split() for line in capsys.readouterr().out.splitlines()[1 + len(sheet.rows) :]]


def test_the_bill_is_by_cost_within_a_currency() -> None:
    head, row, *_ = BILLED.splitlines()
    rows = [
        row.replace(",EUR,", f",{currency},").replace(",6.25,", f",{cost},")
        for currency, cost in (("USD", "9"), ("EUR", "2"), ("EUR", "10"), ("USD", "100"))
    ]

    sheet = bill_of("\n".join((head, *rows)))

    assert [(row["currency"], row["cost"]) for row in sheet.rows] == [
        *(("EUR", "10.00"), ("EUR", "2.00"), ("USD", "100.00"), ("USD", "9.00"))
    ]


def test_the_bill_ends_with_its_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert total_lines(BILLED, capsys) == [["TOTAL", "2.54", "6.25", "EUR", "40%", "2.50"]]
    assert bill_of(BILLED.splitlines()[0]).totals == ()


@pytest.mark.parametrize("columns", ["namespace", "models,label:team", "namespace,pod,uid,owner,node,models"])
def test_the_total_stands_below_every_grouping_under_no_name(
    columns: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bill = BILLED.replace("namespace,owner", columns)
    for cells in ("team-a,Job/x", "team-b,"):
        bill = bill.replace(cells, ",".join("" for _ in columns.split(",")))

    assert total_lines(bill, capsys) == [["TOTAL", "2.54", "6.25", "EUR", "40%", "2.50"]]


def test_the_total_has_a_cost_in_each_currency_and_one_sum_of_hours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_dollars = BILLED.splitlines()[1].replace("2.5,EUR", "2,USD").replace(",6.25,", ",5.000000000001,")
    bill = f"{BILLED}{BILLED.splitlines()[1]}\n{in_dollars}\n"

    assert total_lines(bill, capsys) == [["TOTAL", "7.54", "12.50", "EUR", "40%", "7.50"], ["5.00", "USD"]]
    output.show(bill_of(bill), "json")
    assert json.loads(capsys.readouterr().out)["total"] == {
        **{"posted": "3", "pending": "127774003", "amount": "27127774000", "gpuHours": "7.535492777778"},
        **{"requested": "27000000000", "measured": "300", "used": "120", "unused": "180"},
        "costs": [{"cost": "12.5", "currency": "EUR"}, {"cost": "5.000000000001", "currency": "USD"}],
    }


def test_csv_has_no_total_that_could_be_taken_for_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(bill_of(BILLED), "csv")

    assert len(capsys.readouterr().out.splitlines()) == len(BILLED.splitlines())


def test_figures_in_gpu_hours_have_the_names_of_the_api_s_csv() -> None:
    named = {each.key for each in USAGE.columns if each.key.endswith("Hours")}
    asked = ReportQuery(span=Interval(0, 1), columns=("namespace", *PRICE), now_ms=1, with_use=True)
    assert named == {"gpuHours", "requestedGpuHours"}
    assert set(REPORT.keys) >= set(report_formats.columns(asked)) >= named | BILL
    assert set(FOCUS_SHEET.keys) >= FOCUS


def test_the_bill_has_the_columns_that_it_is_grouped_by() -> None:
    by_label = bill_of(BILLED.replace("namespace,owner", "models,label:team"))

    titles = [each.title for each in by_label.columns]
    assert titles[1:4] == ["MODELS", "LABEL:TEAM", "GPU-HOURS"]
    assert by_label.rows[1]["models"] == "team-b"


@pytest.mark.parametrize("amount", ["-1", "-0.5", "2"])
def test_a_negative_amount_is_no_option(amount: str) -> None:
    context = grant.make_context("grant", ["team-a", amount, "--group", "research", "--reason", "x"])

    assert context.params["gpu_hours"].replace(MINUS, "-") == amount
    with pytest.raises(click.NoSuchOption):
        grant.make_context("grant", ["team-a", "1", "-x", "--reason", "x"])


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("2026-11-01", "2026-11-01"),
        ("2026-11-01T00:00:00Z", "2026-11-01T00:00:00Z"),
        ("2026-11-01 00:00+01:00", "2026-11-01T00:00:00+01:00"),
        ("2026-10-31 23:00:07Z", "2026-10-31T23:00:07Z"),
        ("1795219200000", "1795219200000"),
        ("7 d", "7 d"),
    ],
)
def test_a_time_is_what_the_api_reads_or_what_a_table_shows(text: str, asked: str) -> None:
    assert TIME.convert(text, None, None) == asked


@pytest.mark.parametrize(("text", "ms"), [("7d", 604_800_000), ("36h", 129_600_000)])
def test_a_time_is_also_how_long_ago_it_is(text: str, ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timekeeper.cli.flags.now_ms", lambda: 1_795_219_200_007)

    assert TIME.convert(text, None, None) == str(1_795_219_200_007 - ms)


def test_the_list_of_commands_has_a_whole_line_for_each() -> None:
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output

    lines = shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) == len(cli.commands)
    assert [each for each in lines if "..." in each or len(each.split()) < 3] == []


@pytest.mark.parametrize(
    "arguments", [["team-a", "-A"], ["team-a", "--group", "lab"], ["-A", "--group", "lab"]]
)
def test_grants_are_of_one_account_a_group_s_split_or_of_all(arguments: list[str]) -> None:
    shown = CliRunner().invoke(cli, ["grants", *arguments])

    assert (shown.exit_code, "exclude each other" in shown.output) == (2, True)


class Played:
    """A timekeeper with one pod that holds a card; what it was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, str | None] = {}

    def sheet(self, _form: str, _path: str, **asked: str | None) -> PrintedSheet:
        self.asked = asked
        return PrintedSheet(rows=({"uid": "u", "busy": "75%"},))

    def list(self, _form: str, _path: str, _name: str, **asked: str | None) -> PrintedSheet:
        columns = (PrintedColumn("uid", "UID"), PrintedColumn("gpus", "GPUS"))
        row = {"uid": "u", "gpus": "1", "namespace": "a", "pod": "p"}
        return PrintedSheet(columns, (row,) if asked["state"] == "held" else ())


@pytest.mark.parametrize(
    ("minute", "since", "said"),
    [
        (0, MIDNIGHT - 3_600_000, "2026-11-20 23:00Z"),
        (9, MIDNIGHT - 3_600_000, "2026-11-20 23:00Z"),
        (10, MIDNIGHT, "2026-11-21 00:00Z"),
        (59, MIDNIGHT, "2026-11-21 00:00Z"),
    ],
)
def test_top_shows_the_use_of_the_running_hour_and_says_since_when(
    minute: int, since: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "now_ms", lambda: MIDNIGHT + minute * 60_000)
    played = Played()

    held, ended = top._sheets(played, "table", "a")  # type: ignore[arg-type]

    assert played.asked["from_"] == str(since)
    assert [row["used"] for row in held.rows] == ["75%"]
    assert (held.notes, ended.notes) == ((f"BUSY is measured since {said}.",), ())


@pytest.mark.parametrize(("columns", "is_whole"), [(40, False), (400, True)])
def test_sentences_of_the_doctor_go_on_in_the_next_line_of_a_terminal(columns: int, is_whole: bool) -> None:
    long = " ".join(["sentence"] * 20)
    sheet = PrintedSheet(
        (PrintedColumn("level", "RESULT"), PrintedColumn("sentence", "FINDING", wraps=True)),
        ({"level": "ok", "sentence": long},),
    )
    terminal, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with os.fdopen(theirs, "w") as writing, redirect_stdout(writing):
        show(sheet, "table")
    shown = os.read(terminal, 65_536).decode()
    os.close(terminal)

    plain = re.sub(r"\x1b\[[0-9;]*m|\r", "", shown)
    assert max(map(len, plain.splitlines())) <= columns
    assert (long in plain, plain.count("sentence")) == (is_whole, 20)
