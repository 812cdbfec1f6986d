"""A price that begins on a later day: each charge is valued at the price of its time, in every report, and
what was charged before keeps its price."""

import csv
import hashlib
import io
import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Engine, event

from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.worlds import DAY, GPU, HOUR, T0, Town, budgets

BOTH_DATABASES = "reports are SQL"
NOVEMBER = T0 - 19 * DAY - 10 * HOUR
OCTOBER = NOVEMBER - 31 * DAY
BERLIN = ZoneInfo("Europe/Berlin")
# the oracle's own: (price, first day), as the entries below say it
PRICES = {
    "team-a": [("2.5", date(1970, 1, 1)), ("3", date(2026, 11, 5)), ("0.125", date(2026, 11, 12))],
    "team-b": [("1", date(1970, 1, 1)), ("7.000001", date(2026, 11, 9))],
}
ENTRIES = (
    ("_settings", "timeZone: Europe/Berlin\nprice: 1 then 7.000001 from 2026-11-09", OCTOBER),
    (
        "team-a",
        "gpuHours: 900\nperiod: month\nprice: 2.5 then 3 from 2026-11-05 then 0.125 from 2026-11-12",
        OCTOBER,
    ),
)


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    made.entries(*ENTRIES)
    yield made
    made.close()


def lives(seed: int) -> list[Run]:
    """Sessions of whole hours in November: settled, rolled up, and running."""
    chance = random.Random(seed)
    found = []
    for number in range(12):
        start = NOVEMBER + chance.randrange(0, 15 * 24) * HOUR
        end = start + chance.randrange(1, 80) * HOUR
        run = Run(f"u{number}", chance.choice(("team-a", "team-b")), started_ms=start, rate=GPU * number + 1)
        kind = chance.choice(("settled", "rolled up", "runs"))
        is_running = kind == "runs"
        posted = () if is_running else days(start, end)
        found.append(Run(**{**vars(run), "posted": posted, "heard_ms": end, "settled": not is_running}))
    return found


def valued(runs: list[Run]) -> dict[tuple[str, str], tuple[int, Fraction]]:
    """Namespace and price -> amount and cost, hour by hour, by the date that a clock in Berlin shows."""
    found: dict[tuple[str, str], tuple[int, Fraction]] = {}
    for run in runs:
        end = run.posted[-1][1] if run.posted else run.heard_ms
        for hour in range(run.started_ms, end, HOUR):
            shown = datetime.fromtimestamp(hour // 1000, UTC).astimezone(BERLIN).date()
            price = [text for text, since in PRICES[run.namespace] if since <= shown][-1]
            amount, cost = found.get((run.namespace, price), (0, Fraction(0)))
            more = run.rate * HOUR
            found[run.namespace, price] = amount + more, cost + Fraction(more, GPU * HOUR) * Fraction(price)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("group", ["namespace", "pod"])
def test_every_charge_is_valued_at_the_price_of_its_time(books: Books, seed: int, group: str) -> None:
    runs = lives(seed)
    rolled_up = [run for run in runs if run.posted and int(run.uid[1:]) % 3 == 0]
    books.write(*(run for run in runs if run not in rolled_up))
    books.roll_up(*rolled_up)
    expected = valued(runs)
    span = "from=2026-11-01&to=2026-11-21"

    bill = list(csv.DictReader(io.StringIO(books.get(f"/v1/usage?format=csv&group={group}&{span}").text)))
    rows = books.get(f"/v1/usage?format=focus&by=day&{span}").get_json()["rows"]

    assert summed((each["namespace"], each["price"], each["gpuHours"], each["cost"]) for each in bill) == {
        key: (Fraction(amount, GPU * HOUR), cost) for key, (amount, cost) in expected.items()
    }
    by_day = summed(
        (each["SubAccountId"], each["ListUnitPrice"], each["PricingQuantity"], each["BilledCost"])
        for each in rows
    )
    assert {(name, Fraction(price)): sums for (name, price), sums in by_day.items()} == {
        (name, Fraction(price)): (Fraction(amount, GPU * HOUR), cost)
        for (name, price), (amount, cost) in expected.items()
    }


def summed(rows: Iterator[tuple[object, ...]]) -> dict[tuple[str, str], tuple[Fraction, Fraction]]:
    found: dict[tuple[str, str], tuple[Fraction, Fraction]] = {}
    for namespace, price, *figures in rows:
        key = str(namespace), str(price)
        hours, cost = (Fraction(str(each)) for each in figures)
        before = found.get(key, (Fraction(0), Fraction(0)))
        found[key] = before[0] + hours, before[1] + cost
    return found


def test_a_months_hash_has_each_price_with_its_time(books: Books) -> None:
    run = Run("u", posted=days(NOVEMBER, NOVEMBER + HOUR))
    books.write(run)

    found = books.get("/v1/months/2026-11").get_json()["now"]["prices"]

    bounds = [
        *((datetime(2026, 11, 1, tzinfo=BERLIN), "2.5"), (datetime(2026, 11, 5, tzinfo=BERLIN), "3")),
        *((datetime(2026, 11, 12, tzinfo=BERLIN), "0.125"), (datetime(2026, 12, 1, tzinfo=BERLIN), "")),
    ]
    at = [(int(each.timestamp()) * 1000, price) for each, price in bounds]
    lines = [["team-a", a, b, "", price, "USD"] for (a, price), (b, _) in pairwise(at)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    assert found == hashlib.sha256(text.encode()).hexdigest()


def test_a_date_in_a_closed_month_changes_nothing_of_it(books: Books) -> None:
    ended = Run("u", started_ms=NOVEMBER - 9 * HOUR, posted=days(NOVEMBER - 9 * HOUR, NOVEMBER - 8 * HOUR))
    books.write(ended)
    books.close_months()
    before = books.get("/v1/usage?format=csv&month=2026-10").text

    books.entries(("team-a", "gpuHours: 900\nperiod: month\nprice: 2.5 then 9 from 2026-10-15", T0 + HOUR))

    month = books.get("/v1/months/2026-10").get_json()
    assert (month["state"], month["differs"]) == ("closed", [])
    assert books.get("/v1/usage?format=csv&month=2026-10").text == before
    assert next(csv.DictReader(io.StringIO(before)))["price"] == "2.5"
    with books.store.reading() as connection:
        prices = books.services.ledger.history(connection).price
    assert [prices("team-a", at)[0] for at in (T0 + HOUR - 1, T0 + HOUR)] == ["0.125", "9"]


def test_a_correction_has_the_price_of_the_wrong_charges_month(books: Books) -> None:
    start = NOVEMBER - 9 * HOUR
    books.write(Run("u", started_ms=start, posted=days(start, start + 2 * HOUR)))
    body = {"namespace": "team-a", "gpuHours": "-2", "month": "2026-10", "reason": "a fault"}
    assert books.post("/v1/corrections", body, **{"Idempotency-Key": "k"}).status_code == 200
    books.clock.turn(HOUR)

    (row,) = csv.DictReader(io.StringIO(books.get("/v1/usage?format=csv").text))

    assert (row["price"], row["cost"]) == ("2.5", "-5")


def test_who_writes_a_price_for_a_day_that_has_begun_is_told_from_when_it_counts(town: Town) -> None:
    town.begin(("configmaps", budgets(team_a="gpuHours: 9\nprice: 2 then 3 from 2026-11-25")))
    assert not [each for each in town.notices if each.reason == "LatePrice"]

    town.change("configmaps", budgets(team_a="gpuHours: 9\nprice: 2 then 4 from 2026-11-19"))
    (late,) = [each for each in town.notices if each.reason == "LatePrice"]
    assert late.message == (
        "team-a: price: 4 counts from now on, and not from 2026-11-19: no charge of before gets another"
        " price; kubectl bursar correct corrects a bill"
    )

    town.advance(HOUR)
    town.change("configmaps", budgets(team_a="gpuHours: 8\nprice: 2 then 4 from 2026-11-19"))
    assert len([each for each in town.notices if each.reason == "LatePrice"]) == 1  # it was in force


def test_each_price_is_in_force_from_midnight_in_the_budgets_time_zone_on(books: Books) -> None:
    midnight = int(datetime(2026, 11, 5, tzinfo=BERLIN).timestamp()) * 1000
    run = Run("u", started_ms=midnight - HOUR, posted=days(midnight - HOUR, midnight + HOUR))
    books.write(run)

    rows = list(csv.DictReader(io.StringIO(books.get("/v1/usage?format=csv&month=2026-11").text)))

    assert [(each["price"], each["gpuHours"], each["cost"]) for each in rows] == [
        ("2.5", "1", "2.5"),
        ("3", "1", "3"),
    ]


HOURLY = [f"{1 + hour * 7 % 11}.{hour % 8}" for hour in range(72)]


@pytest.mark.parametrize("group", ["", "_group.lab"])
def test_a_price_for_each_hour_values_each_hour_of_every_namespace(books: Books, group: str) -> None:
    begin = NOVEMBER - 9 * DAY
    books.entries(
        *(("_settings", f"price: {price}", begin + at * HOUR) for at, price in enumerate(HOURLY)),
        ("lab-1", "gpuHours: 9\nperiod: month\ngroup: lab", begin - HOUR),
        ("lab-2", "gpuHours: 7\nperiod: month\ngroup: lab", begin - 2 * HOUR),
        ("lab-2", "gpuHours: 7\nperiod: month", begin + 50 * HOUR),
    )
    # (first hour, hours), each of one GPU
    held = {"lab-1": (3, 60), "lab-2": (40, 20), "alone": (0, 72), "bare": (10, 5)}
    books.write(
        *(
            Run(name, name, started_ms=begin + at * HOUR, posted=days(begin + at * HOUR, begin + end * HOUR))
            for name, (at, length) in held.items()
            for end in (at + length,)
        )
    )
    wanted: dict[tuple[str, str], tuple[Fraction, Fraction]] = {}
    for name, (at, length) in held.items():
        for hour in range(at, at + length):
            if not group or name == "lab-1" or (name == "lab-2" and hour < 50):
                price = Fraction(HOURLY[hour])
                hours, cost = wanted.get((name, HOURLY[hour]), (Fraction(0), Fraction(0)))
                wanted[name, HOURLY[hour]] = hours + 1, cost + price

    rows = {}
    for by in ("namespace", "pod"):
        span = f"from={begin}&to={begin + 72 * HOUR}&group={by}" + (f"&namespace={group}" if group else "")
        found = csv.DictReader(io.StringIO(books.get(f"/v1/usage?format=csv&{span}").text))
        rows[by] = summed(
            (each["namespace"], each["price"], each["gpuHours"], each["cost"]) for each in found
        )

    assert rows == {"namespace": wanted, "pod": wanted}


def test_a_report_sends_the_database_each_price_once_for_all_namespaces(books: Books) -> None:
    begin = NOVEMBER - 9 * DAY
    books.entries(
        *(("_settings", f"price: {price}", begin + at * HOUR) for at, price in enumerate(HOURLY)),
        *((f"team-{number}", "gpuHours: 9\nperiod: month", begin - number * HOUR) for number in range(2, 40)),
    )
    begun = begin + 10 * HOUR
    books.write(
        *(Run(f"u{number}", f"team-{number}", posted=days(begun, begun + HOUR)) for number in range(60))
    )
    sent: list[str] = []

    @event.listens_for(Engine, "before_cursor_execute")
    def keep(_connection: object, _cursor: object, _said: str, values: object, *_: object) -> None:
        given = values.values() if isinstance(values, dict) else values
        sent.extend(each for each in given if isinstance(each, str) and each.startswith("[["))  # type: ignore[attr-defined]

    try:
        books.get(f"/v1/usage?format=csv&from={begin}&to={begin + 72 * HOUR}")
    finally:
        event.remove(Engine, "before_cursor_execute", keep)

    # team-0 and the others without an entry, those with one, and team-a, which has prices of its own
    assert sum(len(json.loads(each)) for each in sent) <= 60 + 2 * len(HOURLY)
