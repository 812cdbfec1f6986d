"""Measured use is kept by the hour, and goes to what was in force when its hour began by the session's own
time: in which a session begins, or is over, there is no other."""

import csv
import io
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.timekeeper.books import Books, Json, Run, days
from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, T0

BOTH_DATABASES = "reports are SQL"
NINE = T0 - T0 % HOUR - HOUR  # 09:00
TEN, ELEVEN = NINE + HOUR, NINE + 2 * HOUR
CHANGED = TEN + 20 * MINUTE
SPAN = f"from={NINE}&to={NINE + 5 * HOUR}"


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    made.entries(
        *(("_settings", "currency: EUR", 0), ("team-a", "gpuHours: 90\nprice: 2", 0)),
        ("_settings", "currency: JPY", CHANGED),
        ("team-a", "gpuHours: 90\nprice: 300\ngroup: vision", CHANGED),
    )
    yield made
    made.close()


def run(uid: str, start: int, end: int) -> Run:
    return Run(uid, started_ms=start, posted=days(start, end))


def measured(books: Books, each: Run, *hours: int) -> None:
    """All cards of the run are half busy in these hours, while it holds them, or as long as 10 s."""
    end = each.posted[-1][1]
    for hour in hours:
        covered = max(10_000, min(end, hour + HOUR) - max(each.started_ms, hour))
        books.used(each.uid, hour, "node", covered, covered * GPU // 2)


def bill(books: Books, query: str = SPAN) -> list[dict[str, str]]:
    text = books.get(f"/v1/usage?{query}&format=csv&use=true").text
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("state", ["settled", "rolled up", "runs"])
def test_a_session_that_began_after_a_price_has_no_use_at_the_one_before(books: Books, state: str) -> None:
    each = run("a", TEN + 30 * MINUTE, ELEVEN + HOUR)
    if state == "rolled up":
        books.roll_up(each)
        books.write(Run("known"))  # by which the namespace is
    else:
        runs = replace(each, posted=(), settled=False, heard_ms=ELEVEN + HOUR)
        books.write(runs if state == "runs" else each)
    measured(books, each, TEN, ELEVEN)

    rows = bill(books)

    assert [(row["price"], row["currency"], row["gpuHours"], row["measuredGpuHours"]) for row in rows] == [
        ("300", "JPY", "1.5", "1.5")
    ]
    (row,) = books.rows(f"{SPAN}&namespace=_group.vision&group=group&use=true")
    assert (row["measured"], row["used"]) == (GPU * HOUR * 3 // 2, GPU * HOUR * 3 // 4)


def test_each_hour_of_a_session_that_runs_has_its_own_use(books: Books) -> None:
    each = run("a", NINE, ELEVEN + HOUR)
    books.write(replace(each, posted=(), settled=False, heard_ms=ELEVEN + HOUR))
    measured(books, each, NINE, TEN, ELEVEN)

    shown = [books.rows(f"from={at}&to={at + HOUR}&group=pod&use=true") for at in (NINE, TEN, ELEVEN)]

    # TEN has the change of the price, of which each part has a row
    assert [sum(row["measured"] for row in rows) for rows in shown] == [GPU * HOUR] * 3


def test_the_hour_of_a_change_is_used_under_what_was_in_force_when_it_began(books: Books) -> None:
    each = run("a", NINE, ELEVEN + HOUR)
    books.write(each)
    measured(books, each, NINE, TEN, ELEVEN)

    rows = bill(books, f"{SPAN}&group=group")

    assert [(row["price"], row["group"], row["measuredGpuHours"]) for row in rows] == [
        ("2", "", "2"),
        ("300", "vision", "1"),
    ]


def test_a_time_that_begins_within_an_hour_has_the_use_of_sessions_that_begin_in_it(books: Books) -> None:
    each = run("a", TEN + 30 * MINUTE, ELEVEN)
    books.write(each)
    measured(books, each, TEN)

    assert [row["measured"] for row in books.rows(f"from={CHANGED}&to={ELEVEN}&use=true")] == [
        GPU * HOUR // 2
    ]
    assert books.rows(f"from={NINE}&to={CHANGED}&use=true") == []


@pytest.mark.parametrize("is_rolled_up", [False, True])
def test_what_is_measured_when_a_session_is_over_stands_with_its_last_hour(
    books: Books, is_rolled_up: bool
) -> None:
    each = run("a", NINE, ELEVEN)
    (books.roll_up if is_rolled_up else books.write)(each)
    measured(books, each, TEN, ELEVEN)

    rows = books.rows(f"{SPAN}&by=hour&use=true")

    assert [(row["from"], row["measured"]) for row in rows] == [(NINE, 0), (TEN, GPU * (HOUR + 10_000))]
    assert books.rows(f"from={ELEVEN}&to={ELEVEN + HOUR}&use=true&group=pod") == []


def test_use_without_a_charge_makes_no_row(books: Books) -> None:
    books.write(replace(run("free", NINE, TEN), rate=0, posted=()))
    books.used("free", NINE, "node", HOUR, 1)

    assert books.rows(f"{SPAN}&use=true&group=pod") == []
    assert books.rows(f"{SPAN}&use=true&by=hour") == []


STEP = 15 * MINUTE


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("by", ["by=all", "by=hour", "by=hour&timeZone=Asia/Kathmandu", "by=day&group=pod"])
def test_each_hour_of_use_is_in_one_row_and_each_row_has_an_amount(books: Books, seed: int, by: str) -> None:
    chance = random.Random(seed)
    changes = sorted(chance.sample(range(1, 4 * 40), 40))
    terms = [(chance.choice(("vision", "speech", "")), chance.randrange(1, 5)) for _ in changes]
    entries = [
        ("team-b", f"gpuHours: 9\nprice: {price}" + (f"\ngroup: {group}" if group else ""), NINE + at * STEP)
        for at, (group, price) in zip(changes, terms, strict=True)
    ]
    books.entries(*entries)
    expected: Counter[tuple[str, str]] = Counter()
    for number in range(8):
        start = NINE + chance.randrange(0, 4 * 40) * STEP
        end = start + chance.randrange(1, 4 * 9) * STEP
        each = Run(f"u{number}", "team-b", started_ms=start, posted=days(start, end))
        (books.roll_up if chance.random() < 0.3 else books.write)(each)
        for hour in range(start - start % HOUR, end, HOUR):
            at = max(hour, start)
            within = [each for change, each in zip(changes, terms, strict=True) if NINE + change * STEP <= at]
            group, price = within[-1] if within else ("", "")
            used = chance.randrange(1, HOUR)
            books.used(each.uid, hour, "node", HOUR, used)
            expected[group, str(price)] += used
    books.clock.turn(3 * DAY)
    span = f"from={NINE - DAY}&to={NINE + 4 * DAY}&namespace=team-b&{by}"

    rows = bill(books, f"{span}{',group' if 'group=' in by else '&group=group'}")

    assert all(int(row["amount"]) > 0 for row in rows)
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[row["group"], row["price"]] += int(row["used"])
    assert found == expected
    plain: list[Json] = books.rows(f"{span}&use=true")
    assert sum(row["used"] for row in plain) == expected.total()
    assert all(row["amount"] for row in plain)
