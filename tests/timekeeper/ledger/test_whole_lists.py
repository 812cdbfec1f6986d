"""Lists and files that are longer than a page: every row is there, or a sentence says that more exist; files
have exact figures, and the dates of the budgets' time zone."""

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import insert
from werkzeug.test import Client

from tests.cli.process.test_each_form import served
from tests.timekeeper.books import Books, Run, posting_row, session_row
from tests.timekeeper.dashboards import ADMIN, URL, Dashboards, log_in
from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, SECOND, T0, Json
from timekeeper.cli.main import cli
from timekeeper.store.engine.schema import DECISIONS, GRANTS, POSTINGS, SESSIONS, WOULD

BOTH_DATABASES = "reports and lists are SQL"
NOVEMBER = T0 - 19 * DAY - 10 * HOUR  # 2026-11-01T00:00:00Z
PODS, MEMBERS = 12_000, 1_200
# pod number N holds a card for so many milliseconds on day N // 400, in namespace N % 1,200
HELD_MS = 30 * SECOND


@pytest.fixture
def made(database_url: str, tmp_path: Path) -> Iterator[Dashboards]:
    with closing(Dashboards(tmp_path, database_url=database_url)) as dashboards:
        dashboards.books.clock.at_ms = NOVEMBER + 30 * DAY - HOUR
        yield dashboards


def held(number: int) -> Run:
    start = NOVEMBER + number // 400 * DAY + HOUR
    name = f"m{number % MEMBERS:04}"
    return Run(f"u{number:05}", name, started_ms=start, posted=((start, start + HELD_MS + number % 7, 1),))


def write_at_once(books: Books, *runs: Run) -> None:
    with books.store.writing() as connection:
        connection.execute(insert(SESSIONS), [session_row(run) for run in runs])
        connection.execute(
            insert(POSTINGS),
            [posting_row(run, at, *each) for run in runs for at, each in enumerate(run.posted)],
        )


@pytest.fixture
def many(made: Dashboards) -> Dashboards:
    made.books.entries(("_defaults", "gpuHours: unlimited\ngroup: lab", NOVEMBER))
    write_at_once(made.books, *map(held, range(PODS)))
    return made


def typed(made: Dashboards, folder: Path, *words: str) -> Result:
    (folder / "token").write_text(ADMIN)
    with ExitStack() as stack:
        server = stack.enter_context(served(made.app))
        known = {"BURSAR_SERVER": server, "BURSAR_TOKEN_FILE": str(folder / "token"), "HOME": str(folder)}
        return CliRunner().invoke(cli, words, env=known)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def hours(amount: int) -> str:
    """Exact to 12 places, by the decimal digits of a quotient of whole numbers."""
    exact = round(Fraction(amount, 3_600_000_000) * 10**12)
    whole, rest = divmod(exact, 10**12)
    return f"{whole}.{rest:012}".rstrip("0").rstrip(".")


def test_a_file_has_every_pod_exactly_as_json_has_it(many: Dashboards, tmp_path: Path) -> None:
    asked = ("usage", "-A", "--group", "pod", "--from", "2026-11-01", "--to", "2026-12-01")
    file, whole = (typed(many, tmp_path, *asked, "-o", form) for form in ("csv", "json"))

    rows, items = rows_of(file.stdout), json.loads(whole.stdout)["items"]
    expected = {run.uid: hours(GPU * (HELD_MS + at % 7)) for at, run in enumerate(map(held, range(PODS)))}
    assert (file.exit_code, file.stderr.strip()) == (0, ""), file.output
    assert {row["uid"]: row["gpuHours"] for row in rows} == expected
    assert len(rows) == PODS
    assert [(row["uid"], row["gpuHours"]) for row in rows] == [(row["uid"], row["gpuHours"]) for row in items]


def test_a_table_that_is_cut_says_so(many: Dashboards, tmp_path: Path) -> None:
    asked = ("usage", "-A", "--group", "pod", "--from", "2026-11-01", "--to", "2026-12-01")
    done = typed(many, tmp_path, *asked)

    assert len(done.stdout.splitlines()) == 1 + 10_000
    assert "Only the 10000 largest are listed, and there may be more: -o csv has all." in done.stderr


def page(client: Client, path: str) -> str:
    answer = client.get(path, base_url=URL)
    assert answer.status_code == 200, answer.text
    return " ".join(re.sub(r"<[^>]+>", " ", answer.text.replace("<wbr>", "")).split())


def test_pages_sum_every_row(many: Dashboards) -> None:
    client = many.client()
    log_in(client)
    total = f"{sum(HELD_MS + at % 7 for at in range(PODS)) / HOUR:.2f}"

    by_day = page(client, "/costs?month=2026-11&group=day")
    by_pod = page(client, "/costs?month=2026-11&group=pod")
    group = page(client, "/groups/lab")

    assert f"So far {total} GPU-hours" in by_day
    assert "Rows 1 to 30 of 30" in by_day
    assert "3.33" in by_day.split("2026-11-30")[1]  # 400 pods of 30 s, of the last day
    assert f"So far {total} GPU-hours" in by_pod
    assert "The figures above are of all" in by_pod
    # ten pods of 30 s each: no member used nothing
    members = re.findall(r"\bm\d{4} .*? (\d\.\d\d)\b", group.split("Members")[1])
    assert (len(members), {*members}) == (MEMBERS, {"0.08"})


def test_the_largest_use_is_that_of_all_who_have_any(many: Dashboards) -> None:
    client = many.client()
    log_in(client)

    shown = page(client, "/waste?group=pod&span=month")

    assert "These are the sums of the 200 largest users alone; there are more." in shown
    assert "there are more" not in page(client, "/waste?group=group&span=month")
    for query in ("", "&below=50"):
        of_some = page(client, f"/waste?group=pod&span=month{query}")
        assert "None of the 200 largest users was measured" in of_some
        assert "none has" not in of_some
        assert "none has" in page(client, f"/waste?group=group&span=month{query}")


def test_the_newest_grants_are_those_of_all(made: Dashboards) -> None:
    made.books.entries(("team-a", "gpuHours: 1\nperiod: month", NOVEMBER))
    row = {"subject": "team-a", "period_start_ms": NOVEMBER, "period_end_ms": NOVEMBER + 30 * DAY}
    row |= {"amount": GPU * HOUR, "kind": "manual", "actor": "x"}
    rows = [
        {
            **row,
            "reason": f"number {at:05}",
            "idempotency_key": f"k{at}",
            "created_ms": NOVEMBER + at * MINUTE,
        }
        for at in range(10_020)
    ]
    with made.books.store.writing() as connection:
        connection.execute(insert(GRANTS), rows)
    client = made.client()
    log_in(client)

    shown = page(client, "/namespaces/team-a")

    assert re.findall(r"number (\d+)", shown) == [f"{at:05}" for at in range(10_019, 10_007, -1)]
    assert re.search(r"The newest first, 12 of 1002\d", shown)


def test_what_would_have_happened_is_shown_after_a_page_of_pods_that_were_admitted(made: Dashboards) -> None:
    row = {"rule": "", "sentence": "Why.", "at_ms": NOVEMBER + 20 * DAY, "judged_ms": NOVEMBER + 20 * DAY}
    rows = [{**row, "uid": f"u{at}", "pod": f"p{at}", "namespace": f"m{at:03}"} for at in range(300)]
    made.books.entries(("_settings", "mode: meter", NOVEMBER - DAY))
    with made.books.store.writing() as connection:
        connection.execute(
            insert(WOULD),
            [{**each, "verdict": "held" if each["uid"] == "u299" else "admitted"} for each in rows],
        )
    client = made.client()
    log_in(client)

    shown = page(client, "/would")

    assert "Nothing would have happened" not in shown
    assert "m299" in shown


def test_a_nodes_charges_are_in_order_and_summed_over_all_pages(made: Dashboards, tmp_path: Path) -> None:
    at_ms = NOVEMBER + 29 * DAY
    # the UIDs are not in the order of the ends
    runs = [
        Run(f"u{at * 7 % 600:03}", started_ms=at_ms, posted=((at_ms, at_ms + (1 + at) * MINUTE, 1),))
        for at in range(600)
    ]
    write_at_once(made.books, *runs)
    client = made.client()
    log_in(client)

    first, second = (page(client, f"/nodes/n1?from=2026-11-29&page={at}") for at in (1, 2))
    item = re.compile(r"\bu\d{3}\b")

    total = sum(1 + at for at in range(600)) / 60
    assert f"together {total:,.2f} GPU-hours" in first
    assert f"together {total:,.2f} GPU-hours" in second
    newest_first = [run.uid for run in reversed(runs)]
    assert item.findall(first.split("together")[1]) == newest_first[:500]
    assert item.findall(second.split("together")[1]) == newest_first[500:]


def test_a_command_that_lists_the_newest_says_that_there_are_more(made: Dashboards, tmp_path: Path) -> None:
    row: Json = {
        "source": "webhook",
        "kind": "refused",
        "reason": "x",
        "namespace": "team-a",
        "owner": "",
        "uid": "",
    }
    row |= {"is_generated": False, "budget": "", "figures": "{}", "count": 1}
    rows = [
        {**row, "subject": f"p{at:03}", "first_ms": NOVEMBER + at, "last_ms": NOVEMBER + at}
        for at in range(120)
    ]
    with made.books.store.writing() as connection:
        connection.execute(insert(DECISIONS), rows)

    for form in ("table", "csv"):
        few, all_of_them = (
            typed(made, tmp_path, "decisions", "-A", "--most", most, "-o", form) for most in ("100", "120")
        )
        assert (len(few.stdout.splitlines()), len(all_of_them.stdout.splitlines())) == (101, 121)
        assert few.stderr.strip() == "Only 100 are listed, and there are more."
        assert all_of_them.stderr.strip() == ""
        assert few.stdout.index("p119") < few.stdout.index("p118") < few.stdout.index("p020")


def test_figures_of_files_are_exact(made: Dashboards, tmp_path: Path) -> None:
    start = NOVEMBER + DAY
    made.books.entries(
        ("team-a", "gpuHours: 1.2\nperiod: month", NOVEMBER),
        ("team-b", "gpuHours: 40\nperiod: month", NOVEMBER),
    )
    made.books.write(
        Run("a", "team-a", started_ms=start, posted=((start, start + 100 * MINUTE + 1, 1),)),
        Run("b", "team-b", started_ms=start, posted=((start, start + 7 * SECOND, 1),)),
    )
    made.books.used("a", start, "node", HOUR, 333 * HOUR)

    budgets = {
        row["namespace"]: row for row in rows_of(typed(made, tmp_path, "budget", "-A", "-o", "csv").stdout)
    }
    items = json.loads(typed(made, tmp_path, "budget", "-A", "-o", "json").stdout)["items"]
    (used,) = rows_of(typed(made, tmp_path, "usage", "-n", "team-a", "--use", "-o", "csv").stdout)
    (charge,) = (
        row
        for row in rows_of(
            typed(made, tmp_path, "node", "charges", "n1", "-A", "--from", "2026-11-01", "-o", "csv").stdout
        )
        if row["pod"] == "b"
    )

    assert [budgets[name]["used"] for name in ("team-a", "team-b")] == ["1.666666944444", "0.001944444444"]
    assert [budgets[name]["percent"] for name in ("team-a", "team-b")] == [
        "138.888912037037",
        "0.004861111111",
    ]
    for item in items:
        row = budgets[item["namespace"]]
        amounts = {"used": item["posted"] + item["pending"], "granted": item["granted"]}
        assert {name: row[name] for name in amounts} == {name: hours(each) for name, each in amounts.items()}
        assert Fraction(row["left"]) == round(Fraction(item["remaining"], GPU * HOUR), 12)
    assert (used["gpuHours"], used["busy"]) == ("1.666666944444", "33.3")
    assert (charge["gpuHours"], charge["from"]) == ("0.001944444444", "2026-11-02 00:00:00Z")


BUDAPEST = (("2026-10-24T22:00:00Z", 2), ("2026-10-31T23:00:00Z", 1))  # local midnights of UTC+2 and UTC+1


def test_days_of_files_have_the_dates_of_the_budgets_time_zone(made: Dashboards, tmp_path: Path) -> None:
    made.books.entries(("_settings", "timeZone: Europe/Budapest", NOVEMBER - 60 * DAY))
    begins = [int(datetime.fromisoformat(text).timestamp() * 1000) for text, _ in BUDAPEST]
    write_at_once(
        made.books,
        *(Run(f"u{at}", started_ms=at, posted=((at, at + 60 * MINUTE, 1),)) for at in begins),
    )
    span = "from=2026-10-20&to=2026-11-20&by=day"

    file = rows_of(made.books.get(f"/v1/usage?format=csv&{span}", ADMIN).text)
    items = made.books.rows(span)
    focus = rows_of(made.books.get(f"/v1/usage?format=focus-csv&{span}", ADMIN).text)
    command = rows_of(
        typed(
            made,
            tmp_path,
            *("usage", "-A", "--by", "day", "--from", "2026-10-20", "--to", "2026-11-20", "-o", "csv"),
        ).stdout
    )
    table = typed(
        made, tmp_path, *("usage", "-A", "--by", "day", "--from", "2026-10-20", "--to", "2026-11-20")
    ).stdout

    assert [(row["step"], row["from"], row["to"]) for row in file] == [
        ("2026-10-25", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"),  # of 25 hours
        ("2026-11-01", "2026-11-01T00:00:00+01:00", "2026-11-02T00:00:00+01:00"),
    ]
    assert command == [
        {name: row[name] for name in ("from", "to", "step", "namespace", "gpuHours")} for row in file
    ]
    assert [(row["step"], row["from"]) for row in items] == [
        (row["step"], at) for row, at in zip(file, begins, strict=True)
    ]
    # FOCUS wants UTC
    assert [(row["x_Step"], row["ChargePeriodStart"]) for row in focus] == [
        (row["step"], text) for row, (text, _) in zip(file, BUDAPEST, strict=True)
    ]
    assert [line.split()[0] for line in table.splitlines()] == ["DAY", "2026-10-25", "2026-11-01"]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Los_Angeles", "Asia/Kolkata"])
def test_the_step_is_named_by_the_zone_that_cut_it(made: Dashboards, zone: str) -> None:
    begin = NOVEMBER + 3 * DAY
    made.books.write(Run("u", started_ms=begin, posted=((begin, begin + DAY, 1),)))
    asked = f"from={begin}&to={begin + DAY}&timeZone={zone}"
    # the second shown by a clock there
    offsets = {"UTC": 0, "Pacific/Auckland": 780, "America/Los_Angeles": -480, "Asia/Kolkata": 330}
    local = [
        datetime.fromtimestamp(at // 1000, UTC) + timedelta(minutes=offsets[zone])
        for at in range(begin, begin + DAY, 30 * MINUTE)
    ]

    for step, form in (("day", "%Y-%m-%d"), ("month", "%Y-%m"), ("hour", "%Y-%m-%d %H:00")):
        names = [
            row["step"]
            for row in rows_of(made.books.get(f"/v1/usage?format=csv&{asked}&by={step}", ADMIN).text)
        ]
        shown = list(dict.fromkeys(f"{at:{form}}" for at in local))
        assert [name[: len(shown[0])] for name in names][1:-1] == shown[1:-1]
        assert {names[0][:10], names[-1][:10]} <= {f"{at:%Y-%m-%d}"[: len(names[0])] for at in local}
        assert [row["step"] for row in made.books.rows(f"{asked}&by={step}")] == names


def test_a_page_s_file_begins_with_a_byte_order_mark_and_the_apis_does_not(made: Dashboards) -> None:
    made.books.write(Run("u", started_ms=NOVEMBER, posted=((NOVEMBER, NOVEMBER + HOUR, 1),)))
    client = made.client()
    log_in(client)
    begin: Json = {
        form: client.get(f"/costs/{form}?month=2026-11", base_url=URL).data[:3] for form in ("csv", "focus")
    }

    assert begin == {"csv": b"\xef\xbb\xbf", "focus": b"Bil"}
    assert made.books.get("/v1/usage?format=csv&month=2026-11", ADMIN).data.startswith(b"from,to,")
