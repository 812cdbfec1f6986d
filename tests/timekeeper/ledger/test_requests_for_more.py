"""A namespace or group over budget, or whose pod waits for more than it has: whom its people ask, and the
text that they send. Amounts are computed by hand: a pod that ran for N hours on one card has used N
GPU-hours."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import insert

from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.worlds import DAY, HOUR, T0, token, user_status
from timekeeper.api import sheets
from timekeeper.store.engine.schema import DECISIONS, HELD_PODS

Json = dict[str, Any]
MONTH = T0 - T0 % DAY - 19 * DAY  # 2026-11-01
UNTIL = "until 2026-12-01T00:00:00Z"
ASKED = "the leads of group {}, or the people who run Bursar"
PEOPLE = "the people who run Bursar"


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    built = Books(database_url)
    built.entries(
        ("_group.blue", "gpuHours: 200\nperiod: month\nleads: [Ada Lovelace, grace@example.com]", 0),
        ("_group.red", "gpuHours: 20\nperiod: month\nleads: [Alan]", 0),
        ("_group.open", "gpuHours: unlimited\nleads: [Edsger]", 0),
        ("_group.led", "gpuHours: 100\nperiod: month", 0),
        ("spent", "gpuHours: 10\nperiod: month\ngroup: blue", 0),  # 2.5 over its own
        ("rich", "gpuHours: 90\nperiod: month\ngroup: blue", 0),
        ("of-red", "gpuHours: 500\nperiod: month\ngroup: red", 0),  # its group is 3 over
        ("of-open", "gpuHours: 1\nperiod: month\ngroup: open", 0),  # 4 over
        ("of-led", "gpuHours: 1\nperiod: month\ngroup: led", 0),  # 1 over
        ("alone", "gpuHours: 6\nperiod: once", 0),  # exactly spent
        ("free", "gpuHours: unlimited", 0),
    )
    used = {"spent": 12.5, "rich": 10, "of-red": 23, "of-open": 5, "of-led": 2, "alone": 6, "free": 9}
    built.write(
        *(
            Run(f"uid-{name}", name, f"ran-{name}", started_ms=MONTH, ended_ms=MONTH + int(hours * HOUR),
                posted=days(MONTH, MONTH + int(hours * HOUR)))
            for name, hours in used.items()
        )
    )  # fmt: skip
    yield built
    built.close()


def grants(subject: str, hours: str = "HOURS", reason: str = "REASON", group: str = "") -> str:
    of_group = f" --group {group}" if group else ""
    who = f"A lead of group {group} passes them on" if group else "An administrator grants them"
    return f'{who}: kubectl bursar grant {subject} {hours}{of_group} --reason "{reason}"'


@pytest.mark.parametrize(
    ("subject", "whom", "text"),
    [
        ("spent", "Ada Lovelace, grace@example.com (leads of group blue)",
         f"spent asks for GPU time: spent is 2.5 GPU-hours over budget {UNTIL}. Wanted: HOURS GPU-hours, more"
         f" than 2.5, for REASON. {grants('spent', group='blue')}"),
        ("of-red", "Alan (lead of group red)",
         f"of-red asks for GPU time: _group.red is 3 GPU-hours over budget {UNTIL}. Wanted: HOURS GPU-hours,"
         f" more than 3, for REASON. {grants('_group.red')}"),
        ("of-open", "Edsger (lead of group open)",
         f"of-open asks for GPU time: of-open is 4 GPU-hours over budget {UNTIL}. Wanted: HOURS GPU-hours,"
         f" more than 4, for REASON. {grants('of-open')}"),
        ("of-led", ASKED.format("led"),
         f"of-led asks for GPU time: of-led is 1 GPU-hours over budget {UNTIL}. Wanted: HOURS GPU-hours, more"
         f" than 1, for REASON. {grants('of-led', group='led')}"),
        ("alone", PEOPLE,
         "alone asks for GPU time: alone is 0 GPU-hours over budget. Wanted: HOURS GPU-hours, for REASON."
         f" {grants('alone')}"),
        ("_group.red", PEOPLE,
         f"_group.red asks for GPU time: _group.red is 3 GPU-hours over budget {UNTIL}. Wanted: HOURS"
         f" GPU-hours, more than 3, for REASON. {grants('_group.red')}"),
    ],
)  # fmt: skip
def test_who_is_over_budget_is_told_whom_to_ask_and_the_text(
    subject: str, whom: str, text: str, books: Books
) -> None:
    answer = books.get(f"/v1/budgets/{subject}").get_json()

    assert answer["standing"] == "OVER_BUDGET"
    assert answer["request"] == {"to": whom, "text": text}
    notes = [*sheets.BUDGET.notes(answer, 0)]
    assert notes[-2:] == [f"For more, send this to {whom}; Bursar sends nothing:", text]


@pytest.mark.parametrize("subject", ["rich", "free", "_group.blue", "unknown"])
def test_who_is_in_budget_has_nothing_to_ask_for(subject: str, books: Books) -> None:
    answer = books.get(f"/v1/budgets/{subject}").get_json()

    assert answer["request"] is None
    assert not any("send this" in note for note in sheets.BUDGET.notes(answer, 0))


def wait(books: Books, namespace: str, hours: float, gang: str = "") -> None:
    """A pod that declares this time on one card waits behind the gate."""
    held = {"uid": "big", "namespace": namespace, "name": "big-1", "created_ms": T0, "rate_milli": 1000,
            "priority": 0, "needs_budget": True, "length_ms": int(hours * HOUR), "gang": gang}  # fmt: skip
    decided = {"source": "settler", "kind": "held", "reason": "Held", "is_generated": False, "budget": ""}
    decided |= {"namespace": namespace, "subject": "big-1", "uid": "big", "owner": "", "figures": "{}"}
    with books.store.writing() as connection:
        connection.execute(insert(HELD_PODS), [held])
        connection.execute(insert(DECISIONS), [decided | {"count": 1, "first_ms": T0, "last_ms": T0}])


@pytest.mark.parametrize(
    ("namespace", "hours", "left", "missing", "giver"),
    [
        ("rich", 80.004, "rich has 80 GPU-hours of its budget left", "0.01", ("rich", "blue")),
        ("rich", 95.5, "rich has 80 GPU-hours of its budget left", "15.50", ("rich", "blue")),
        ("spent", 1, "spent is 2.5 GPU-hours over budget", "3.50", ("spent", "blue")),
        ("of-red", 2, "_group.red is 3 GPU-hours over budget", "5.00", ("_group.red", "")),
    ],
)
def test_a_pod_that_waits_for_more_says_how_much(
    namespace: str, hours: float, left: str, missing: str, giver: tuple[str, str], books: Books
) -> None:
    wait(books, namespace, hours)

    answer = books.get(f"/v1/explain/{namespace}/big-1").get_json()

    subject, group = giver
    assert answer["request"]["text"] == (
        f"{namespace} asks for GPU time: {left} {UNTIL}. Wanted: at least {missing} GPU-hours, for pod big-1."
        f" {grants(subject, missing, 'big-1', group)}"
    )
    assert [*sheets.LIFE.rows(answer)][-1]["what"] == answer["request"]["text"]


def test_a_pod_that_lacks_nothing_asks_for_nothing(books: Books) -> None:
    wait(books, "rich", 80)

    answer = books.get("/v1/explain/rich/big-1").get_json()

    assert answer["request"] is None
    assert not any("send this" in row["what"] for row in sheets.LIFE.rows(answer))


def test_a_pod_that_ran_in_a_namespace_over_budget_has_the_text_of_the_namespace(books: Books) -> None:
    answer = books.get("/v1/explain/spent/ran-spent").get_json()

    assert answer["request"] == books.get("/v1/budgets/spent").get_json()["request"]


def test_a_reader_who_may_not_see_the_groups_account_sees_its_leads(books: Books) -> None:
    reader = token("reader")
    books.reviews.tokens[reader] = user_status("reader")
    books.reviews.denied |= {("reader", "get", "budgets", place) for place in ("", "_group.blue")}

    answer = books.get("/v1/budgets/spent", reader).get_json()

    assert answer["group"] == {"name": "blue", "standing": "IN_BUDGET"}
    assert answer["request"]["to"].startswith("Ada Lovelace, ")


def test_leads_count_from_the_entry_that_is_in_force(books: Books) -> None:
    books.entries(("_group.blue", "gpuHours: 200\nperiod: month\nleads: [Barbara]", books.clock() - 1))

    assert books.get("/v1/budgets/spent").get_json()["request"]["to"] == "Barbara (lead of group blue)"
