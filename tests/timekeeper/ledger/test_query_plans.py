"""Reports and balances of one namespace read its rows by index, and no large table as a whole."""

from collections.abc import Iterator

import pytest
from sqlalchemy import insert, text
from werkzeug.test import TestResponse

from tests.timekeeper.books import Books, Run, posting_row, session_row
from tests.timekeeper.plans import Statements
from tests.timekeeper.worlds import ADMIN, DAY, HOUR, T0
from timekeeper.store.engine.schema import DECISIONS, FIGURES, FOLDED, POSTINGS, SESSIONS

BOTH_DATABASES = "a plan is its database's"

NAMESPACES, SESSIONS_EACH, POSTED = 100, 12, 4
LARGE = (POSTINGS.name, SESSIONS.name, FOLDED.name, FIGURES.name, DECISIONS.name)


def runs() -> Iterator[Run]:
    """Sessions over some days, of which every twelfth still runs."""
    for number in range(NAMESPACES * SESSIONS_EACH):
        start = T0 - 20 * DAY + number % 17 * DAY
        hours = tuple((start + at * HOUR, start + (at + 1) * HOUR, 1) for at in range(POSTED))
        is_open = number % 12 == 0
        yield Run(
            f"uid-{number}",
            f"t{number % NAMESPACES}",
            f"pod-{number}",
            owner=f"Job/job-{number % 97}",
            node=f"n{number % 50}",
            started_ms=start,
            ended_ms=None if is_open else start + POSTED * HOUR,
            settled=not is_open,
            posted=() if is_open else hours,
        )


def old_runs() -> Iterator[Run]:
    """Sessions that are rolled up, an hour a day each."""
    first = T0 - T0 % DAY - 40 * DAY
    for number in range(NAMESPACES):
        hours = tuple((first + day * DAY, first + day * DAY + HOUR, 1) for day in range(30))
        yield Run(f"old-{number}", f"t{number}", started_ms=first, posted=hours)


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    written = list(runs())
    posted = [posting_row(run, at, *each) for run in written for at, each in enumerate(run.posted)]
    used = {"source": "node", "covered_ms": HOUR, "used_milli_ms": 1, "memory_mib_ms": 0}
    decided = {"source": "extender", "kind": "placed", "reason": "Bound", "is_generated": False, "budget": ""}
    decided |= {"figures": "{}", "count": 1, "first_ms": T0, "last_ms": T0}
    with made.store.writing() as connection:
        connection.execute(insert(SESSIONS), [session_row(each) for each in written])
        connection.execute(insert(POSTINGS), posted)
        hours = [
            {"session_uid": each.uid, "hour_ms": each.started_ms - each.started_ms % HOUR} for each in written
        ]
        connection.execute(insert(FIGURES), [each | used for each in hours])
        pods = [
            {"namespace": each.namespace, "owner": each.owner, "subject": each.name, "uid": each.uid}
            for each in written
        ]
        connection.execute(insert(DECISIONS), [each | decided for each in pods])
    made.roll_up(*old_runs())
    with made.store.writing() as connection:
        connection.execute(text("ANALYZE"))
    yield made
    made.close()


def read(books: Books, path: str) -> TestResponse:
    """The answer, without the accounts stated anew before it."""
    return books.client.get(path, headers={"Authorization": f"Bearer {ADMIN}"})


def test_one_namespace_is_read_by_index(books: Books) -> None:
    month = f"from={T0 - 20 * DAY}&to={T0}"
    found: dict[str, list[str]] = {}
    for path in (
        f"/v1/usage?{month}&namespace=t7",
        f"/v1/usage?from={T0 - 20 * DAY + 1}&to={T0 - 1}&namespace=t7",
        f"/v1/usage?{month}&namespace=t7&by=day",
        f"/v1/usage?{month}&namespace=t7&by=hour&use=true",
        f"/v1/usage?{month}&namespace=t7&group=pod",
        f"/v1/usage?{month}&namespace=t7&group=owner",
        f"/v1/usage?{month}&namespace=t7&use=true",
        f"/v1/usage?{month}&namespace=t7&format=focus&limit=10",
        "/v1/budgets/t7",
        "/v1/sessions?namespace=t7",
        "/v1/decisions?namespace=t7",
        "/v1/explain/t7/pod-7",
    ):
        books.get(path).close()
        statements = Statements(books.store.engine)
        with read(books, path) as answer:
            assert answer.status_code == 200, answer.get_data(as_text=True)
            assert answer.get_data()
        statements.end()
        assert statements.count
        found[path] = list(statements.scans(LARGE, if_cheap=False))
    assert not [each for plans in found.values() for each in plans], found


def test_an_explanation_is_few_statements_however_many_pods_it_tells_of(books: Books) -> None:
    """The entries' number, the decisions, the sessions and their charges; and the account. Of a pod also the
    claims that it uses, and its use by the hour."""
    for path, count in (("/v1/explain/t7/pod-7", 8), ("/v1/explain/t7/job/job-7", 6)):
        books.get(path).close()
        statements = Statements(books.store.engine)
        assert read(books, path).status_code == 200
        statements.end()
        assert statements.all == count
