"""Reports of several time ranges in one answer, held against sums that are made row by row, and against the
report of each range alone."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.profile import IS_SOAK, examples
from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.clocks import at_ms
from tests.timekeeper.ledger.test_reports import BEGIN, KEYS, SPAN, brute, ledgers, sheet, wiped
from tests.timekeeper.plans import Statements
from tests.timekeeper.worlds import ADMIN, DAY, GPU, HOUR, T0

BOTH_DATABASES = "reports are SQL"
ON_A_DATABASE = settings(
    max_examples=examples(20, soak=1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
RANGES = st.lists(
    st.tuples(st.integers(0, SPAN), st.integers(1, SPAN)).map(
        lambda each: (BEGIN + each[0], BEGIN + sum(each))
    ),
    min_size=2,
    max_size=4,
    unique=True,
)
COLUMNS = {"namespace": ("namespace",), "owner": ("namespace", "owner")}


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    built = Books(database_url)
    yield built
    built.close()


def asked(ranges: list[tuple[int, int]]) -> str:
    (start, end), *others = ranges
    return f"from={start}&to={end}&beside={','.join(f'{a}/{b}' for a, b in others)}"


@ON_A_DATABASE
@given(ledger=ledgers, ranges=RANGES, group=st.sampled_from(sorted(COLUMNS)))
def test_each_range_has_what_the_evidence_proves(
    books: Books, ledger: tuple[Run, ...], ranges: list[tuple[int, int]], group: str
) -> None:
    books.clock.at_ms = BEGIN + 2 * SPAN
    with wiped(books):
        books.write(*ledger)
        rows = books.rows(f"{asked(ranges)}&group={group}")

    for span in ranges:
        its = [row for row in rows if (row["from"], row["to"]) == span]
        sums = {(span[0], *(row[each] for each in COLUMNS[group])): row["amount"] for row in its}
        assert {key: amount for key, amount in sums.items() if amount} == brute(ledger, KEYS[group], [span])


MARCH, APRIL = T0 - 20 * DAY, T0 - 10 * DAY  # when prices and groups change


@pytest.fixture
def priced(books: Books) -> Books:
    books.entries(
        ("_settings", "price: 1", 0),
        ("team-a", "gpuHours: 1\ngroup: blue", 0),
        ("team-b", "gpuHours: 1\ngroup: blue\nprice: 4", 0),
        ("team-a", "gpuHours: 1\ngroup: blue\nprice: 3", MARCH),
        ("team-b", "gpuHours: 1\ngroup: green\nprice: 4", APRIL),
    )
    for name in ("team-a", "team-b", "alone"):
        books.write(
            *(Run(f"{name}-{at}", name, started_ms=start, posted=days(start, start + 30 * HOUR))
              for at, start in enumerate((MARCH - 5 * DAY, MARCH + DAY, APRIL + 3 * DAY))),
            Run(f"{name}-runs", name, owner="Job/x", started_ms=APRIL - DAY, heard_ms=T0, settled=False,
                posted=days(APRIL - DAY, APRIL + 2 * DAY)),
        )  # fmt: skip
    return books


SUBJECTS = ("", "&namespace=team-b", "&namespace=_group.blue", "&namespace=_group.green")
QUERIES = ("group=namespace", "group=group", "group=namespace,group", "group=owner", "group=pod&use=true")
# each query and each subject at least once; all pairs in a soak
PAIRS = [
    pytest.param(query, subject, marks=() if (at + other) % len(SUBJECTS) == 0 else pytest.mark.soak)
    for at, query in enumerate(QUERIES)
    for other, subject in enumerate(SUBJECTS)
]

# an order within each range, and a limit of each
ORDERS = ("", "&sort=gpuHours", "&sort=-gpuHours&limit=2", *(("&sort=-gpuHours",) if IS_SOAK else ()))


@pytest.mark.parametrize(("query", "subject"), PAIRS)
def test_each_range_has_the_rows_of_its_own_report(priced: Books, query: str, subject: str) -> None:
    """Some ranges with one price and one group throughout, some not."""
    ranges = [(APRIL, T0 + 5), (MARCH - 6 * DAY, MARCH), (MARCH - DAY, APRIL + DAY), (MARCH, APRIL)]
    for order in ORDERS:
        rest = f"{query}{subject}{order}&format=csv"

        found = sheet(priced.get(f"/v1/usage?{asked(ranges)}&{rest}").text)

        alone = [sheet(priced.get(f"/v1/usage?from={a}&to={b}&{rest}").text) for a, b in ranges]
        assert found == [row for rows in alone for row in rows] != [], order


def test_a_group_has_its_members_of_each_range(priced: Books) -> None:
    rows = priced.rows(f"{asked([(APRIL, T0 + 5), (MARCH - 6 * DAY, MARCH)])}&namespace=_group.green")
    assert [(row["from"], row["namespace"]) for row in rows] == [(APRIL, "team-b")]


def test_what_runs_is_read_once_for_all_ranges(priced: Books) -> None:
    path = f"/v1/usage?{asked([(APRIL, T0), (MARCH, APRIL), (T0 - 7 * DAY, T0)])}"
    statements = Statements(priced.store.engine)
    assert priced.client.get(path, headers={"Authorization": f"Bearer {ADMIN}"}).get_json()["rows"]
    statements.end()
    assert sum("heartbeats" in each for each in statements.texts) == 1


NO_RANGES = (
    "beside=2026-13",
    "beside=2026-10/",
    "beside=5/5",
    "beside=2026-10-02/2026-10-01",
    f"beside={','.join(['2026-10'] * 5)}",
    "beside=2026-10&by=day",
    "beside=2026-10&format=focus",
)


def test_ranges_that_are_none_are_refused(books: Books) -> None:
    for query in NO_RANGES:
        answer = books.get(f"/v1/usage?{query}")
        assert (answer.status_code, answer.get_json()["field"]) == (400, "beside"), query


def test_months_and_days_of_the_time_zone_are_ranges(books: Books) -> None:
    books.write(Run("a", started_ms=T0 - 60 * DAY, posted=days(T0 - 60 * DAY, T0)))
    query = "month=2026-11&beside=2026-10,2026-10-05/2026-10-06&timeZone=Europe/Berlin"

    rows = [(row["from"], row["to"], row["amount"]) for row in books.rows(query)]

    november, october, fifth = (at_ms(f"2026-{each}:00:00Z") for each in ("10-31T23", "09-30T22", "10-04T22"))
    assert rows[1:] == [
        (october, november, GPU * (november - october)),
        (fifth, fifth + DAY, GPU * DAY),
    ]
    assert rows[0][:2] == (november, at_ms("2026-11-30T23:00:00Z"))


def test_each_range_has_the_corrections_that_were_made_in_it(books: Books) -> None:
    """October's is October's, whatever it stands beside; one of two ranges is in both, and told once."""
    november = T0 - 19 * DAY - 10 * HOUR
    october, december = november - 31 * DAY, november + 30 * DAY
    books.entries(("team-a", "gpuHours: 99\nperiod: month\nprice: 2", 0))
    books.write(
        Run("o", started_ms=october, posted=days(october, october + 10 * HOUR)),
        Run("n", started_ms=november, posted=days(november, november + 10 * HOUR)),
    )
    for at, taken in ((october + 9 * DAY, 4), (november + 9 * DAY, 3)):
        books.clock.at_ms = at
        body = {"namespace": "team-a", "gpuHours": f"-{taken}", "reason": "a fault"}
        assert books.post("/v1/corrections", body, **{"Idempotency-Key": str(at)}).status_code == 200
    books.clock.at_ms = december + DAY
    query = f"month=2026-11&beside=2026-10,{november}/{december + DAY}"

    rows = sheet(books.get(f"/v1/usage?{query}&format=csv").text)

    assert [(row["from"], row["to"], row["gpuHours"], row["cost"]) for row in rows] == [
        ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z", "10", "20"),
        ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z", "10", "20"),
        ("2026-11-01T00:00:00Z", "2026-12-02T00:00:00Z", "10", "20"),
        ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z", "-3", "-6"),
        ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z", "-4", "-8"),
        ("2026-11-01T00:00:00Z", "2026-12-02T00:00:00Z", "-3", "-6"),
    ]
    told = books.get(f"/v1/usage?{query}&limit=9").get_json()["corrections"]
    assert [each["amount"] for each in told] == [-4 * GPU * HOUR, -3 * GPU * HOUR]
