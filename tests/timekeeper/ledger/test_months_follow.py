"""The months of a ledger leave no gap: one that has ended keeps its bounds, whatever the zone becomes."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from random import Random

import pytest

from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.worlds import DAY, GPU, HOUR
from timekeeper.accounts.budget_history import BudgetEntry, History, history_of
from timekeeper.core.ledger.metering import Interval

BOTH_DATABASES = "what a month holds is SQL"
ZONES = ("America/Los_Angeles", "Asia/Tokyo", "Europe/Budapest", "UTC", "Pacific/Kiritimati", "Pacific/Niue")


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


OCTOBER, NOVEMBER, DECEMBER = (ms(f"2026-{month}-01") for month in (10, 11, 12))
# 24 h of it are October's, and 24 h November's
EDGE = Run(
    "edge", started_ms=NOVEMBER - DAY, posted=days(NOVEMBER - DAY, NOVEMBER + DAY), ended_ms=NOVEMBER + DAY
)
# its last evidence is of October, so that October waits
SILENT = Run("silent", started_ms=NOVEMBER - 2 * DAY, heard_ms=NOVEMBER - 2 * DAY + HOUR, settled=False)


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    yield made
    made.close()


def charged(books: Books, query: str) -> float:
    return sum(float(row["gpuHours"]) for row in books.rows(query))


def bounds(books: Books, month: str) -> tuple[int, int]:
    found = books.get(f"/v1/months/{month}").get_json()
    return found["from"], found["to"]


@pytest.mark.parametrize("zone", ZONES[:3])
@pytest.mark.parametrize("waits", [False, True], ids=["closed", "waits"])
def test_the_next_month_begins_where_the_last_one_ended_in_whatever_zone(
    books: Books, zone: str, waits: bool
) -> None:
    """A pod of 48 h over the edge: 24 are October's, which was closed in UTC or waits, and 24 November's."""
    books.write(EDGE, *([SILENT] if waits else []))
    books.close_months()
    books.entries(("_settings", f"timeZone: {zone}", NOVEMBER + 2 * DAY))

    state = books.get("/v1/months/2026-10").get_json()["state"]
    of_edge = "namespace=team-a&group=pod"
    months = [charged(books, f"month={month}") for month in ("2026-10", "2026-11")]
    beside = books.rows("month=2026-11&beside=2026-10")
    by_month = books.rows(f"from={OCTOBER}&by=month")

    more = 1.0 if waits else 0.0
    assert state == ("waits" if waits else "closed")
    assert months == [24 + more, 24]
    assert [(row["from"], row["to"], float(row["gpuHours"])) for row in beside] == [
        (NOVEMBER, DECEMBER, 24),
        (OCTOBER, NOVEMBER, 24 + more),
    ]
    assert [(row["from"], row["to"]) for row in by_month] == [
        (OCTOBER, NOVEMBER),
        (NOVEMBER, books.clock()),
    ]
    assert books.get("/v1/usage").get_json()["from"] == NOVEMBER  # the running month
    assert (bounds(books, "2026-10"), bounds(books, "2026-11")) == (
        (OCTOBER, NOVEMBER),
        (NOVEMBER, DECEMBER),
    )
    focus = csv.DictReader(io.StringIO(books.get("/v1/usage?month=2026-10&format=focus-csv").text))
    assert {(row["BillingPeriodStart"], row["BillingPeriodEnd"]) for row in focus} == {
        ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z")
    }
    assert charged(books, of_edge) == 24
    books.close_months()
    assert books.get("/v1/months/2026-10").get_json()["differs"] == []


@pytest.mark.parametrize("zone", ZONES[:3])
def test_a_pod_of_the_edge_is_refunded_in_the_month_that_charged_it(books: Books, zone: str) -> None:
    """It ran in the last and the first hours of the months alone, as they were in UTC."""
    last = Run("last", started_ms=NOVEMBER - HOUR, posted=days(NOVEMBER - HOUR, NOVEMBER))
    first = Run("first", started_ms=NOVEMBER, posted=days(NOVEMBER, NOVEMBER + HOUR))
    books.write(last, first)
    books.close_months()
    books.entries(("_settings", f"timeZone: {zone}", NOVEMBER + 2 * DAY))

    for pod, month in (("last", "2026-10"), ("first", "2026-11")):
        body = {"namespace": "team-a", "gpuHours": "-1", "month": month, "pod": pod, "reason": "a fault"}
        answer = books.post("/v1/corrections", body, **{"Idempotency-Key": pod})
        assert (answer.status_code, answer.get_json()["corrections"][0]["amount"]) == (200, -GPU * HOUR)


@pytest.mark.parametrize(
    ("zone", "ends"),
    [
        ("America/Los_Angeles", "2027-01-01T08:00:00"),
        ("Asia/Tokyo", "2026-12-31T15:00:00"),
        ("Europe/Budapest", "2026-12-31T23:00:00"),
    ],
)
def test_a_new_zone_counts_from_the_end_of_the_running_month(books: Books, zone: str, ends: str) -> None:
    books.write(EDGE)
    books.entries(("_settings", f"timeZone: {zone}", NOVEMBER + 2 * DAY))

    assert bounds(books, "2026-12") == (DECEMBER, ms(ends))


def test_the_zone_that_is_written_in_a_ledgers_first_month_counts_from_its_beginning(books: Books) -> None:
    """Pods are charged before somebody writes the settings."""
    books.write(Run("a", started_ms=NOVEMBER + DAY, posted=days(NOVEMBER + DAY, NOVEMBER + DAY + HOUR)))
    books.entries(("_settings", "timeZone: Asia/Tokyo", NOVEMBER + 2 * DAY))

    assert bounds(books, "2026-11") == (NOVEMBER - 9 * HOUR, DECEMBER - 9 * HOUR)


def test_months_of_a_zone_that_is_asked_for_are_its_calendars(books: Books) -> None:
    books.write(EDGE)

    assert charged(books, "month=2026-10&timeZone=Asia/Tokyo") == 15
    assert charged(books, "month=2026-11&timeZone=Asia/Tokyo") == 33


def spans(history: History, first_ms: int, closed: dict[str, Interval], now_ms: int) -> list[Interval]:
    """The months from the first charge on that have ended."""
    months = history.months(first_ms, closed)
    found = [months.at(first_ms)]
    while found[-1].end_ms <= now_ms:
        found.append(months.at(found[-1].end_ms))
    return found[:-1]


@pytest.mark.parametrize("seed", range(60))
def test_months_tile_time_through_every_history_of_zones_and_closings(seed: int) -> None:
    """Whatever zones are set when, and whichever months are closed or wait: what has ended stays, each month
    begins where the last one ended, and has a name of its own."""
    random = Random(seed)
    first_ms = OCTOBER + random.randrange(60) * DAY + random.randrange(DAY)
    now_ms = first_ms - random.choice((0, HOUR, 40 * DAY))
    history, closed, before = history_of(()), dict[str, Interval](), list[Interval]()
    for _ in range(24):
        now_ms += random.randrange(1, 40 * DAY)
        found = spans(history, first_ms, closed, max(now_ms, first_ms))
        if found and random.random() < 0.5:  # the settler closes what it can, some months in any order
            for span in random.sample(found, random.randrange(len(found) + 1)):
                name = f"{datetime.fromtimestamp(span.start_ms / 1000 + 14 * 86_400, UTC):%Y-%m}"
                closed[name] = span
            closed = dict(sorted(closed.items()))
        assert found[: len(before)] == before, seed
        assert all(one.end_ms == other.start_ms for one, other in pairwise(found))
        lengths = [(span.end_ms - span.start_ms) // HOUR for span in found]
        assert all(28 * 24 - 26 <= hours <= 31 * 24 + 27 for hours in lengths)
        months = history.months(first_ms, closed)
        names = [datetime.fromtimestamp(span.start_ms / 1000 + 14 * 86_400, UTC) for span in found]
        assert [months.named(name.date().replace(day=1)) for name in names] == found
        assert all((b.month - a.month) % 12 == 1 for a, b in pairwise(names))
        before = found
        if random.random() < 0.6:
            entry = BudgetEntry("_settings", f"timeZone: {random.choice(ZONES)}", now_ms)
            history = history.followed_by([entry])


@pytest.mark.parametrize("seed", range(4))
def test_the_sum_of_all_months_is_the_sum_of_all_charges(books: Books, seed: int) -> None:
    """Pods at random over half a year, zones set at random, months closed meanwhile or not."""
    random = Random(seed)
    begin, end = OCTOBER - 20 * DAY, DECEMBER + 70 * DAY
    total = 0
    for number in range(40):
        start = random.randrange(begin, end - 4 * DAY)
        to = start + random.randrange(1, 3 * DAY)
        rate = random.randrange(1, 4 * GPU)
        books.write(Run(f"u{number}", started_ms=start, posted=days(start, to), ended_ms=to, rate=rate))
        total += rate * (to - start)
    books.clock.at_ms = begin + 25 * DAY
    while books.clock() < end:
        if random.random() < 0.7:
            books.close_months()
        books.clock.turn(random.randrange(1, 20 * DAY))
        books.entries(("_settings", f"timeZone: {random.choice(ZONES)}", books.clock() - 1))
    books.clock.at_ms = max(books.clock(), end + 40 * DAY)

    names = ("2026-08", "2026-09", "2026-10", "2026-11", "2026-12", "2027-01", "2027-02", "2027-03")
    sums = [sum(row["amount"] for row in books.rows(f"month={name}")) for name in names]
    by_month = books.rows(f"from={begin - DAY}&by=month")
    focus = books.get(f"/v1/usage?from={begin // 1000 * 1000}&by=month&format=focus").get_json()["rows"]

    assert sum(sums) == total
    assert sum(row["amount"] for row in by_month) == total
    assert len({row["BillingPeriodStart"] for row in focus}) == len(by_month)
    books.close_months()
    pages = {name: books.get(f"/v1/months/{name}").get_json() for name in names}
    assert [page["now"]["amount"] for page in pages.values()] == sums
    assert {page["state"] for page in pages.values() if page["now"]["amount"]} == {"closed"}
    assert all(page["differs"] == [] for page in pages.values())
    assert all(one["to"] == other["from"] for one, other in pairwise(pages.values()))
