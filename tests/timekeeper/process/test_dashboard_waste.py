"""The dashboard's page of waste: what pods held, what was measured of that, and what they used."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from werkzeug.test import Client

from tests.timekeeper.books import Run, days
from tests.timekeeper.dashboards import URL, Dashboards, log_in
from tests.timekeeper.worlds import DAY, HOUR, T0

NONE = "\u2013"  # the dash of an empty cell
BEGIN = T0 - 2 * DAY


@pytest.fixture
def visitor(tmp_path: Path) -> Iterator[Client]:
    """Of three pods: one used a quarter of four measured hours, one nine tenths of ten, one was not
    measured."""
    made = Dashboards(tmp_path)
    for namespace, held, measured, used_milli in (
        ("team-a", 10, 4, 250),
        ("team-b", 20, 10, 900),
        ("team-c", 5, 0, 0),
    ):
        uid = f"pod-of-{namespace}"
        made.books.write(Run(uid, namespace, started_ms=BEGIN, posted=days(BEGIN, BEGIN + held * HOUR)))
        for hour in range(measured):
            made.books.used(uid, BEGIN + hour * HOUR, "node", HOUR, HOUR * used_milli)
    client = made.client()
    log_in(client)
    yield client
    made.close()


def texts(page: str, element: str) -> list[str]:
    found = re.findall(rf"<{element}[^>]*>(.*?)</{element}>", page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", each).split()) for each in found]


def test_who_leaves_most_unused_comes_first_with_what_was_requested_measured_and_used(
    visitor: Client,
) -> None:
    page = visitor.get("/waste", base_url=URL).text

    rows = [texts(each, "t[hd]") for each in page.partition("<tbody>")[2].split("</tr>")[:3]]
    assert rows == [
        ["team-a", "25%", "10.00", "4.00", "1.00", "3.00"],
        ["team-b", "90%", "20.00", "10.00", "9.00", "1.00"],
        ["team-c", NONE, "5.00", "0.00", NONE, NONE],
    ]
    assert texts(page, "th")[-7:-3] == ["Requested", "Measured", "Used", "Unused"]
    assert texts(page, "dt")[0] == "Requested by pods"
    assert texts(page, "dd") == [
        "35.00 GPU-hours",
        "14.00 GPU-hours, 40%",
        "10.00 GPU-hours, 71% of measured",
        "4.00 GPU-hours, 29% of measured",
    ]


def test_only_the_chosen_time_and_namespace_count(visitor: Client) -> None:
    today = visitor.get("/waste?span=day", base_url=URL).text
    pods = visitor.get("/waste?group=pod&namespace=team-b", base_url=URL).text

    assert "Nothing was requested in this time" in today
    assert texts(pods.partition("<tbody>")[2], "t[hd]")[:2] == ["team-b", "pod-of-team-b"]
    assert "team-a" not in pods


def test_a_threshold_leaves_those_who_used_less_of_what_was_measured(visitor: Client) -> None:
    def pods(below: str) -> list[str]:
        page = visitor.get(f"/waste?group=pod&below={below}", base_url=URL).text
        return re.findall(r"pod-of-(team-.)</a>", page.partition("<tbody>")[2])

    assert [pods(each) for each in ("25", "26", "90", "91", "100")] == [
        *([], ["team-a"], ["team-a"]),
        *(["team-a", "team-b"], ["team-a", "team-b"]),
    ]
    rows = visitor.get("/waste?group=pod&below=26", base_url=URL).text.partition("<tbody>")[2]
    assert texts(rows, "t[hd]") == ["team-a", "pod-of-team-a", "25%", "10.00", "4.00", "1.00", "3.00"]
    none = visitor.get("/waste?below=25", base_url=URL).text
    assert ("Nobody used less than 25 %" in none, "Nothing was" in none) == (True, False)


def test_where_nothing_was_measured_a_threshold_says_so(visitor: Client) -> None:
    page = visitor.get("/waste?below=25&namespace=team-c", base_url=URL).text

    assert ("Nothing was measured in this time" in page, "Nobody used" in page) == (True, False)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        *((f"below={each}", "below: it must be a whole number of per cent from 1 to 100")
          for each in ("0", "101", "-5", "5.5", "5%25", "%2B5", "\u0665", "x" * 50)),
        ("span=year", "span: it must be day, week, month"),
        ("group=cards", "group: it must be"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_what_is_allowed(
    visitor: Client, query: str, sentence: str
) -> None:
    answer = visitor.get(f"/waste?{query}", base_url=URL)

    assert (answer.status_code, sentence in answer.text) == (400, True), answer.text
