"""A day as `from` or `to` of a list begins at midnight in the budgets' time zone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.worlds import HOUR, MINUTE, T0

MIDNIGHT = T0 - 19 * HOUR  # of the 20th of November in Tokyo: 2026-11-19T15:00:00Z


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(f"sqlite:///{tmp_path}/ledger.db")
    made.clock.at_ms = T0
    made.entries(("_settings", "timeZone: Asia/Tokyo", 0))
    yield made
    made.close()


@pytest.mark.parametrize(("name", "expected"), [("from", ["after"]), ("to", ["before"])])
def test_sessions_and_decisions_of_a_day(books: Books, name: str, expected: list[str]) -> None:
    for uid, start in (("before", MIDNIGHT - 30 * MINUTE), ("after", MIDNIGHT)):
        books.write(Run(uid, started_ms=start, posted=days(start, start + 30 * MINUTE)))
    decision = {"kind": "placed", "reason": "Bound", "namespace": "team-a", "owner": "", "generate_name": "",
                "budget": "", "figures": {}, "count": 1}  # fmt: skip
    for uid, age_ms in (("before", 19 * HOUR + 1), ("after", 19 * HOUR)):
        aged = {"first_age_ms": age_ms, "last_age_ms": age_ms, "uid": uid, "name": uid}
        body = {"version": 1, "source": "extender", "decisions": [decision | aged]}
        assert books.post("/v1/decisions", body).status_code == 200

    sessions = books.get(f"/v1/sessions?{name}=2026-11-20").get_json()["sessions"]
    decisions = books.get(f"/v1/decisions?{name}=2026-11-20").get_json()["decisions"]

    assert [each["uid"] for each in sessions] == expected
    assert [each["uid"] for each in decisions] == expected


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/sessions", "/v1/decisions"])
def test_a_day_without_hyphens_is_refused(books: Books, path: str) -> None:
    answer = books.get(f"{path}?from=20261101")

    assert (answer.status_code, answer.get_json()["field"]) == (400, "from")
    assert answer.get_json()["detail"].startswith("a day is written as 2026-11-01: 20261101 milliseconds")
    assert books.get(f"{path}?from=1793491200000&to=2026-12-01T00:00:00Z").status_code == 200


def test_a_report_from_the_first_day_of_1970_has_pages(books: Books) -> None:
    """In Tokyo that day begins before 1970."""
    for uid in ("one", "two"):
        books.write(Run(uid, started_ms=MIDNIGHT, posted=days(MIDNIGHT, MIDNIGHT + MINUTE)))
    path = "/v1/usage?group=pod&from=1970-01-01&limit=1"

    page = books.get(path).get_json()
    rest = books.get(f"{path}&after={page['next']}")

    assert (rest.status_code, len(rest.get_json()["rows"])) == (200, 1)
