"""The dashboard's page of costs: a month beside the one before, what is expected, and what a line consists
of."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from werkzeug.test import Client

from tests.timekeeper.books import Run, days
from tests.timekeeper.dashboards import READER, URL, Dashboards, log_in
from tests.timekeeper.worlds import DAY, HOUR, T0

NONE = "\u2013"  # the dash of an empty cell
OCTOBER, NOVEMBER = T0 - 50 * DAY, T0 - 19 * DAY  # the first days, 10:00


def run(uid: str, namespace: str, start: int, length: int, **more: str) -> Run:
    return Run(uid, namespace, started_ms=start, posted=days(start, start + length * HOUR), **more)  # type: ignore[arg-type]


@pytest.fixture
def dashboards(dashboards: Dashboards) -> Dashboards:
    dashboards.books.entries(
        ("team-a", "gpuHours: 400\nperiod: month\nprice: 2.5\ngroup: lab", 0),
        ("team-b", "gpuHours: 100\nperiod: month\nprice: 4\ngroup: lab", 0),
        ("team-c", "gpuHours: 100\nperiod: month\nprice: 2", 0),
    )
    dashboards.books.write(
        run("old", "team-a", OCTOBER + 4 * DAY, 10),
        run("gone", "team-c", OCTOBER, 3),
        run("early", "team-a", NOVEMBER + 2 * DAY, 8, models="H100", owner="Job/train"),
        run("late", "team-a", NOVEMBER + 15 * DAY, 14, owner="Job/train"),
        run("b", "team-b", NOVEMBER, 30),
    )
    return dashboards


@pytest.fixture
def visitor(dashboards: Dashboards) -> Client:
    client = dashboards.client()
    log_in(client)
    return client


def table(client: Client, query: str = "") -> list[list[str]]:
    """The texts of the table's cells, by row; the first are its headings."""
    answer = client.get(f"/costs{query}", base_url=URL)
    assert answer.status_code == 200, answer.text
    rows = re.findall(r"<tr>(.*?)</tr>", answer.text.replace("<wbr>", ""), re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row] for row in cells]


def test_a_month_stands_beside_the_one_before_and_what_is_expected_of_it(visitor: Client) -> None:
    head, *rows = table(visitor)

    # three reports, in one answer, are too much each 5 s
    assert "data-live" not in visitor.get("/costs", base_url=URL).text
    assert head == [
        *("Namespace", "GPU-hours", "Price", "Cost", "Month before", "By the month's end", "Change"),
    ]
    # of the last 7 days 14 hours; until December there are 254 hours more: 14 / 168 * 254 = 21.1667 hours
    assert rows == [
        ["team-b", "30.00", "4 USD", "120.00 USD", NONE, "120.00 USD", "new"],
        ["team-a", "22.00", "2.5 USD", "55.00 USD", "25.00 USD", "107.92 USD", "+332%"],
        ["team-c", "0.00", "no price", NONE, "6.00 USD", NONE, "-100%"],
    ]


@pytest.mark.parametrize(
    ("query", "hours", "expected"),
    # four hours of 36; until December 254 hours are left: 4 + 4 / 36 * 254 = 32.22
    [("", 36, "32.22"), ("?namespace=_group.lab&group=namespace", 36, "32.22"), ("", 23, None)],
)
def test_a_young_ledgers_pace_is_that_of_the_time_it_has_seen(
    tmp_path: Path, query: str, hours: int, expected: str | None
) -> None:
    made = Dashboards(tmp_path)
    made.books.entries(("team-a", "gpuHours: 400\ngroup: lab", 0))
    begun = T0 - hours * HOUR
    made.books.write(run("young", "team-a", begun, 4))
    client = made.client()
    log_in(client)
    try:
        page = client.get(f"/costs{query}", base_url=URL).text
        head, *rows = table(client, query)
    finally:
        made.close()

    assert ("By the month's end" in head) is (expected is not None)
    assert [row[head.index("By the month's end")] for row in rows if expected] == [expected] * bool(expected)
    assert ("at the pace of the last 1d12h" in page) is (expected is not None)


def test_the_page_says_when_its_month_begins_and_ends(dashboards: Dashboards, visitor: Client) -> None:
    dashboards.books.entries(("_settings", "timeZone: Europe/Berlin", 0))
    page = " ".join(re.sub(r"<[^>]+>", "", visitor.get("/costs", base_url=URL).text).split())
    assert (
        "the month begins at 2026-11-01 00:00+01:00 and ends at 2026-12-01 00:00+01:00, by the budgets"
        in page
    )


@pytest.mark.parametrize(
    ("zone", "now", "running"),
    [
        ("Asia/Tokyo", "2026-11-30T16:00:00+00:00", "2026-12"),
        ("Asia/Tokyo", "2026-11-30T14:00:00+00:00", "2026-11"),
        ("America/Los_Angeles", "2026-12-01T07:00:00+00:00", "2026-11"),
        ("America/Los_Angeles", "2026-12-01T09:00:00+00:00", "2026-12"),
        ("UTC", "2026-12-01T00:00:01+00:00", "2026-12"),
    ],
)
def test_the_month_that_is_shown_first_is_that_of_the_budgets_time_zone(
    dashboards: Dashboards, visitor: Client, zone: str, now: str, running: str
) -> None:
    dashboards.books.entries(("_settings", f"timeZone: {zone}", 0))
    dashboards.books.clock.at_ms = int(datetime.fromisoformat(now).timestamp() * 1000)

    page = visitor.get("/costs", base_url=URL).text
    file = visitor.get("/costs/csv", base_url=URL)

    assert re.findall(r"<h1>(.*?)</h1>", page) == [f"Costs of {running}"]
    assert f"<option selected>{running}</option>" in page
    assert file.headers["Content-Disposition"] == f"attachment; filename=bursar-{running}-by-namespace.csv"


def test_a_past_month_expects_nothing_more(visitor: Client) -> None:
    head, *rows = table(visitor, "?month=2026-10")

    assert head == ["Namespace", "GPU-hours", "Price", "Cost", "Month before", "Change"]
    assert rows == [
        ["team-a", "10.00", "2.5 USD", "25.00 USD", NONE, "new"],
        ["team-c", "3.00", "2 USD", "6.00 USD", NONE, "new"],
    ]


def test_a_line_is_proved_by_its_pods_and_its_days(visitor: Client) -> None:
    page = visitor.get("/costs?month=2026-11", base_url=URL).text
    (where,) = re.findall(r'href="(/costs\?[^"]*namespace=team-a[^"]*)"', page.split("<tbody>")[1])
    _, *pods = table(visitor, where.replace("&amp;", "&").removeprefix("/costs"))
    _, *by_day = table(visitor, "?namespace=team-a&group=day")

    assert [(each[1], each[-1]) for each in pods] == [("late", "35.00 USD"), ("early", "20.00 USD")]
    used = [(each[0], each[-1]) for each in by_day if each[1] != "0.00"]
    assert used == [("2026-11-03", "20.00 USD"), ("2026-11-16", "35.00 USD")]


@pytest.mark.parametrize(
    ("query", "heading"),
    [
        ("", "Costs of 2026-11"),
        ("?namespace=team-a", "Costs of 2026-11 in team-a"),
        ("?namespace=_group.lab", "Costs of 2026-11 in _group.lab"),
    ],
)
def test_a_printed_bill_says_whose_it_is(visitor: Client, query: str, heading: str) -> None:
    page = visitor.get(f"/costs{query}", base_url=URL).text

    assert f"<h1>{heading}</h1>" in page
    assert f"<title>{heading}" in page


def test_costs_are_grouped_by_what_the_visitor_chooses(visitor: Client) -> None:
    assert [each[0] for each in table(visitor, "?group=model")[1:]] == ["A100", "H100"]
    assert [each[:2] for each in table(visitor, "?group=group")[1:]] == [["lab", "52.00"], ["none", "0.00"]]
    assert [each[:2] for each in table(visitor, "?label=cost-center")[1:]] == [["none", "52.00"]]
    members = table(visitor, "?namespace=_group.lab&group=namespace")[1:]
    assert [each[0] for each in members] == ["team-b", "team-a"]


def test_the_files_have_every_row_exactly(dashboards: Dashboards, visitor: Client) -> None:
    answer = visitor.get("/costs/csv?month=2026-11&group=pod&namespace=team-a", base_url=URL)
    rows = list(csv.DictReader(io.StringIO(answer.data.decode("utf-8-sig"))))

    assert answer.headers["Content-Disposition"] == "attachment; filename=bursar-2026-11-team-a-by-pod.csv"
    assert answer.content_type == "text/csv; charset=utf-8"
    assert [(each["pod"], each["cost"]) for each in rows] == [("late", "35"), ("early", "20")]
    focus = visitor.get("/costs/focus?month=2026-11", base_url=URL)
    assert focus.headers["Content-Disposition"] == "attachment; filename=bursar-2026-11-focus.csv"
    assert sum(float(each["BilledCost"]) for each in csv.DictReader(io.StringIO(focus.text))) == 175
    assert visitor.get("/costs/none", base_url=URL).status_code == 404
    assert visitor.get("/costs/csv?month=2026-13", base_url=URL).status_code == 400


def test_a_file_needs_the_rights_of_its_rows(dashboards: Dashboards) -> None:
    nobody, reader = dashboards.client(), dashboards.client()
    log_in(reader, READER)

    def answered(client: Client, path: str) -> tuple[int, str]:
        answer = client.get(path, base_url=URL)
        return answer.status_code, answer.headers.get("Location", "")

    assert answered(nobody, "/costs/csv") == (303, "/login?next=%2Fcosts%2Fcsv")
    assert answered(reader, "/costs") == (303, "/costs?namespace=team-a")
    assert answered(reader, "/costs/csv") == (303, "/costs/csv?namespace=team-a")
    assert answered(reader, "/costs/csv?namespace=team-b") == (403, "")
    assert answered(reader, "/costs?namespace=team-a") == (200, "")


def test_without_a_price_the_page_shows_hours_and_says_where_a_price_is_set(tmp_path: Path) -> None:
    made = Dashboards(tmp_path)
    made.books.write(run("a", "team-a", NOVEMBER, 4), run("old", "team-a", OCTOBER, 8))
    client = made.client()
    log_in(client)

    head, row = table(client)
    text = client.get("/costs", base_url=URL).text
    nothing = client.get("/costs?month=2026-08", base_url=URL).text
    made.close()

    assert head == ["Namespace", "GPU-hours", "Month before", "By the month's end", "Change"]
    assert row == ["team-a", "4.00", "8.00", "4.00", "-50%"]
    assert "No price is set" in text
    assert "Nothing was charged in this month" in nothing
    assert 'href="/costs?month=2026-07"' in nothing


def test_the_reason_of_a_correction_stands_after_the_figures_and_wraps(
    dashboards: Dashboards, visitor: Client
) -> None:
    reason = "the node was faulty; " * 9
    body = {"namespace": "team-a", "gpuHours": "-1", "pod": "late", "reason": reason.strip()}
    assert dashboards.books.post("/v1/corrections", body, **{"Idempotency-Key": "k"}).status_code == 200
    dashboards.books.clock.turn(HOUR)

    for query in ("", "?group=pod", "?label=cost-center"):
        head, *rows = table(visitor, query)
        assert head[-1] == "Correction"
        (row,) = (row for row in rows if row[-1])
        assert row[-1] == f"{reason.strip()} (admin; of 2026-11)"
        assert "-1.00" in row
        page = visitor.get(f"/costs{query}", base_url=URL).text
        assert f'<td class="sentence">{reason.strip()}' in page


ZONES = (
    "Pacific/Auckland",
    "Europe/Budapest",
    "America/Los_Angeles",
    "Australia/Lord_Howe",
    "Pacific/Kiritimati",
)


@pytest.mark.parametrize("month", ["2026-09", "2026-10", "2026-11"])
@pytest.mark.parametrize("zone", ZONES)
def test_each_day_of_the_budgets_zone_has_its_own_name_and_length(
    tmp_path: Path, zone: str, month: str
) -> None:
    """A card that is held all the time costs each day as many hours as it has there, counted by the half."""
    begin, end = T0 - 90 * DAY, T0 + 20 * DAY
    lengths: Counter[str] = Counter()
    for at in range(begin, end, HOUR // 2):
        lengths[f"{datetime.fromtimestamp(at // 1000, ZoneInfo(zone)):%Y-%m-%d}"] += 1
    made = Dashboards(tmp_path)
    made.books.entries(("_settings", f"timeZone: {zone}", 0))
    made.books.write(Run("all", "team-a", started_ms=begin, posted=days(begin, end)))
    made.books.clock.at_ms = end
    client = made.client()
    log_in(client)
    try:
        _, *rows = table(client, f"?group=day&month={month}")
    finally:
        made.close()

    assert rows == [[day, f"{halves / 2:.2f}"] for day, halves in sorted(lengths.items()) if day[:7] == month]


def test_the_months_to_choose_from_begin_with_the_one_that_runs_in_the_zone(
    dashboards: Dashboards, visitor: Client
) -> None:
    dashboards.books.entries(("_settings", "timeZone: America/Los_Angeles", 0))
    dashboards.books.clock.at_ms = int(datetime.fromisoformat("2026-12-01T03:00:00+00:00").timestamp() * 1000)

    page = visitor.get("/costs", base_url=URL).text

    assert re.findall(r"<option[^>]*>(2026-1[0-2])</option>", page) == ["2026-11", "2026-10"]
    assert "at the pace of the last" in page  # the week before stands beside the month that runs alone


def test_the_nightly_job_is_one_row(dashboards: Dashboards, visitor: Client) -> None:
    jobs = [f"Job/nightly-{29_600_000 + 1_440 * night}" for night in range(5)]
    dashboards.books.write(
        *(run(f"n{at}", "team-b", NOVEMBER + at * DAY, 1, owner=job) for at, job in enumerate(jobs))
    )
    _, *rows = table(visitor, "?group=namespace,workload&month=2026-11")
    page = visitor.get("/namespaces/team-b", base_url=URL).text.replace("<wbr>", "")
    waste = visitor.get("/waste?group=namespace,workload&span=month", base_url=URL).text.replace("<wbr>", "")

    assert [row[:3] for row in rows if "nightly" in row[1]] == [["team-b", "CronJob/nightly", "5.00"]]
    link = '<a href="/pods/team-b/CronJob/nightly">CronJob/nightly</a>'
    assert (page.count(link), page.count("Job/nightly-")) == (1, 0)
    assert (waste.count(link), waste.count("Job/nightly-")) == (1, 0)


def test_the_burn_down_says_whose_dates_it_has(dashboards: Dashboards, visitor: Client) -> None:
    dashboards.books.entries(("_settings", "timeZone: Pacific/Auckland", 0))

    page = visitor.get("/namespaces/team-a", base_url=URL).text

    assert "<li>dates are those of Pacific/Auckland</li>" in page


DECEMBER_5 = NOVEMBER + 34 * DAY


def correct(dashboards: Dashboards, at_ms: int, hours: int) -> None:
    """Somebody takes hours of team-a back at that time, charged in that month."""
    dashboards.books.clock.at_ms = at_ms
    body = {"namespace": "team-a", "gpuHours": str(hours), "reason": "the node was faulty"}
    answer = dashboards.books.post("/v1/corrections", body, **{"Idempotency-Key": f"{at_ms}"})
    assert answer.status_code == 200, answer.text


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Dashboards]:
    made = Dashboards(tmp_path)
    yield made
    made.close()


def shown(books: Dashboards, at_ms: int, query: str) -> tuple[list[list[str]], str]:
    """The rows and the tiles of the page at that time."""
    books.books.clock.at_ms = at_ms
    client = books.client()
    log_in(client)
    page = client.get(f"/costs{query}", base_url=URL).text
    tiles = re.findall(r'<dl class="tiles">(.*?)</dl>', page, re.DOTALL)
    return table(client, query)[1:], " ".join(re.sub(r"<[^>]+>", " ", "".join(tiles)).split())


@pytest.mark.parametrize("price", ["", "\nprice: 2"])
def test_months_are_compared_with_what_was_taken_back_in_each(books: Dashboards, price: str) -> None:
    """October: 1,000 h charged and 400 taken back, which is 600; November: 700 charged and 100 taken back."""
    books.books.entries(("team-a", f"gpuHours: 9000\nperiod: month{price}", 0))
    books.books.write(
        *(run(f"o{number}", "team-a", OCTOBER + DAY, 100) for number in range(10)),
        *(run(f"n{number}", "team-a", NOVEMBER + DAY, 100) for number in range(7)),
    )
    correct(books, OCTOBER + 20 * DAY, -400)
    correct(books, NOVEMBER + 20 * DAY, -100)

    (charged, corrected), tiles = shown(books, DECEMBER_5, "?month=2026-11")
    _, of_october = shown(books, DECEMBER_5, "?month=2026-10")

    times, unit = (2, " USD") if price else (1, "")
    before = f"{600 * times:,}.00{unit}" if price else "600.00"
    assert charged[:2] == ["team-a", "700.00"]
    assert charged[-3:-1] == [before, "+0%"]
    assert corrected[1] == "-100.00"
    assert corrected[-3:] == [NONE if price else "0.00", NONE, "the node was faulty (admin; of 2026-11)"]
    assert before in tiles.split("The month before")[1]
    assert before in of_october.split("In the month")[1]


def test_what_was_taken_back_in_the_last_days_tells_no_pace(books: Dashboards) -> None:
    """14 h in the last 7 days, and 254 h until December: 14 + 14 / 168 * 254 = 35.17 h, of which 5 were taken
    back once."""
    books.books.entries(("team-a", "gpuHours: 9000\nperiod: month", 0))
    books.books.write(run("old", "team-a", OCTOBER, 1), run("new", "team-a", T0 - 3 * DAY, 14))
    correct(books, T0 - HOUR, -5)

    _, tiles = shown(books, T0, "?month=2026-11")

    assert "By the month's end 30.17" in tiles.replace("&#39;", "'")


def test_two_currencies_are_never_one_figure_nor_one_order(books: Dashboards) -> None:
    """In yen since 10 November: 20 EUR and 3,000 JPY are neither a change nor an order."""
    yen = NOVEMBER + 9 * DAY
    books.books.entries(
        ("_settings", "currency: EUR", 0),
        ("_settings", "currency: JPY", yen),
        *((name, "gpuHours: 900\nperiod: month\nprice: 1", 0) for name in ("team-a", "team-c", "team-d")),
        ("team-b", "gpuHours: 900\nperiod: month\nprice: 1", 0),
        ("team-b", "gpuHours: 900\nperiod: month\nprice: 100", yen),
        ("team-d", "gpuHours: 900\nperiod: month\nprice: 100", yen),
    )
    books.books.write(
        run("b0", "team-b", OCTOBER + DAY, 20),
        run("d0", "team-d", OCTOBER + DAY, 10),
        run("a", "team-a", NOVEMBER, 20),
        run("c", "team-c", NOVEMBER, 50),
        run("b", "team-b", yen + DAY, 30),
        run("d1", "team-d", NOVEMBER, 15),
        run("d2", "team-d", yen + DAY, 2),
    )

    rows, tiles = shown(books, DECEMBER_5, "?month=2026-11")

    # namespace, cost, month before, change
    assert [(row[0], *row[3:]) for row in rows] == [
        ("team-c", "50.00 EUR", NONE, "new"),
        ("team-a", "20.00 EUR", NONE, "new"),
        ("team-d", "15.00 EUR + 200.00 JPY", "10.00 EUR", "+50% EUR, new JPY"),
        ("team-b", "3,000.00 JPY", "20.00 EUR", "-100% EUR, new JPY"),
    ]
    assert "85.00 EUR + 3,200.00 JPY" in tiles


def test_a_cost_says_what_of_it_has_no_price(tmp_path: Path) -> None:
    made = Dashboards(tmp_path)
    priced = ("team-a", "gpuHours: 400\nprice: 2", NOVEMBER + 3 * HOUR)
    made.books.entries(("team-a", "gpuHours: 400", 0), priced)
    made.books.write(run("a", "team-a", NOVEMBER, 10))
    client = made.client()
    log_in(client)
    try:
        page = client.get("/costs?month=2026-11", base_url=URL).text
    finally:
        made.close()

    assert "weighted by model; 3.00 without a price" in page
    assert ">2 USD, no price<" in page
