"""What the people who lead a group see of its namespaces: budgets, and pods that hold cards, wait or are
held, by a right to the group or to each of its namespaces."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import insert

from tests.timekeeper.books import Books, Run
from tests.timekeeper.ledger.test_cluster_map import card, on_map, waits
from tests.timekeeper.worlds import HOUR, T0, token, user_status
from timekeeper.store.engine.schema import HELD_PODS

BOTH_DATABASES = "the namespaces of a group are chosen in SQL"
Json = dict[str, Any]
LEAD = token("lead")
NAMED = "_group.blue"
MEMBERS = ("team-a", "team-b")


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    """team-a and team-b are in the group blue; `other` is in none, `was` was in it until an hour ago, and
    namespaces without an entry are in the group pool. In each a pod holds a card, one waits and one is
    held."""
    built = Books(database_url)
    built.entries(
        ("team-a", "gpuHours: 30\nperiod: month\ngroup: blue", 0),
        ("team-b", "gpuHours: 10\nperiod: month\ngroup: blue", 0),
        ("other", "gpuHours: 10\nperiod: month", 0),
        ("was", "gpuHours: 10\nperiod: month\ngroup: blue", 0),
        (NAMED, "gpuHours: 100\nperiod: month", 0),
        ("_defaults", "gpuHours: 1\nperiod: month\ngroup: pool", 0),
        ("_group.pool", "gpuHours: 50\nperiod: month", 0),
        ("was", "gpuHours: 10\nperiod: month", built.clock() - HOUR),
    )
    names = (*MEMBERS, "other", "was", "unnamed")
    built.write(
        *(
            Run(f"uid-{name}", name, f"runs-{name}", started_ms=T0, heard_ms=built.clock(), settled=False)
            for name in names
        )
    )
    held = [
        {"uid": f"held-{name}", "namespace": name, "name": f"held-{name}", "created_ms": T0,
         "rate_milli": 1000, "priority": 0, "needs_budget": True, "length_ms": 0, "gang": ""}
        for name in names
    ]  # fmt: skip
    with built.store.writing() as connection:
        connection.execute(insert(HELD_PODS), held)
    waiting = {"total": 7, "pods": [waits(f"waits-{name}", name) for name in names], "more": {"team-b": 2}}
    body = {"version": 1, "nodes": [on_map("n1", card(0))], "gone": [], "waiting": waiting, "term": "a-1"}
    assert built.post("/v1/cluster", body).status_code == 200
    built.reviews.tokens[LEAD] = user_status("lead")
    yield built
    built.close()


def deny(books: Books, *places: str, resource: str = "sessions") -> None:
    """Let the lead not read it there."""
    books.reviews.denied |= {("lead", "get", resource, place) for place in places}


LISTS = {"/v1/sessions": "sessions", "/v1/waiting": "pods", "/v1/held": "held"}


def listed(books: Books, path: str, subject: str, bearer: str = LEAD) -> list[str]:
    """The namespaces of its rows."""
    answer = books.get(f"{path}?namespace={subject}", bearer)
    assert answer.status_code == 200, answer.text
    return sorted(row["namespace"] for row in answer.get_json()[LISTS[path]])


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("denied", [("", *MEMBERS), ("", NAMED)], ids=["by the group", "by its namespaces"])
def test_a_lead_reads_the_pods_of_the_groups_present_namespaces(
    path: str, denied: tuple[str, ...], books: Books
) -> None:
    deny(books, *denied, "other", "was", "unnamed")

    assert listed(books, path, NAMED) == [*MEMBERS]


@pytest.mark.parametrize("path", LISTS)
def test_a_common_pool_has_the_namespaces_without_an_entry(path: str, books: Books) -> None:
    deny(books, "", *MEMBERS, "unnamed")

    assert listed(books, path, "_group.pool") == ["unnamed"]
    assert listed(books, path, "_group.nobody") == []


@pytest.mark.parametrize("path", [*LISTS, "/v1/idle"])
def test_who_may_read_some_of_its_namespaces_is_told_which_and_what_the_group_needs(
    path: str, books: Books
) -> None:
    deny(books, "", NAMED, "team-b")

    answer = books.get(f"{path}?namespace={NAMED}", LEAD)

    assert (answer.status_code, answer.get_json()["detail"]) == (
        403,
        "lead may get sessions.bursar.dev of _group.blue in team-a alone: it needs the right on _group.blue,"
        " or in each of its namespaces",
    )


@pytest.mark.parametrize("subject", [NAMED, "_group.nobody"])
def test_who_may_read_none_of_them_is_told_no_name(subject: str, books: Books) -> None:
    deny(books, "", subject, *MEMBERS)

    answer = books.get(f"/v1/sessions?namespace={subject}", LEAD)

    assert answer.status_code == 403
    assert answer.get_json()["detail"] == f"lead may not get sessions.bursar.dev {subject}"


def test_a_large_group_needs_the_right_to_its_name(books: Books) -> None:
    books.entries(*((f"n{at}", "gpuHours: 1\nperiod: month\ngroup: blue", 0) for at in range(100)))
    deny(books, "", NAMED)
    books.reviews.asked.clear()

    answer = books.get(f"/v1/sessions?namespace={NAMED}", LEAD)

    assert (answer.status_code, len(books.reviews.asked)) == (403, 2)
    deny(books, "", *MEMBERS)
    books.reviews.denied.remove(("lead", "get", "sessions", NAMED))
    books.clock.turn(HOUR)
    assert listed(books, "/v1/sessions", NAMED) == [*MEMBERS]


def test_the_number_that_waits_is_the_groups(books: Books) -> None:
    answer = books.get(f"/v1/waiting?namespace={NAMED}", LEAD).get_json()
    assert (answer["total"], len(answer["pods"])) == (4, 2)

    waiting: Json = {"total": 900, "pods": [waits("w", "team-a")], "more": {"team-b": 2}}
    body = {"version": 1, "nodes": [], "gone": [], "waiting": waiting, "term": "a-1"}
    assert books.post("/v1/cluster", body).status_code == 200

    assert books.get(f"/v1/waiting?namespace={NAMED}", LEAD).get_json()["total"] is None


def test_the_budgets_of_a_groups_namespaces_need_the_right_to_the_group(books: Books) -> None:
    deny(books, "", *MEMBERS, resource="budgets")
    answer = books.get("/v1/budgets?group=blue", LEAD)
    assert answer.status_code == 200, answer.text
    found = answer.get_json()
    assert [row["namespace"] for row in (*found["groups"], *found["budgets"])] == [NAMED, *MEMBERS]

    deny(books, NAMED, resource="budgets")
    books.clock.turn(HOUR)
    answer = books.get("/v1/budgets?group=blue", LEAD)
    assert (answer.status_code, answer.get_json()["detail"]) == (
        403,
        "lead may not get budgets.bursar.dev _group.blue",
    )


@pytest.mark.parametrize(
    "path",
    [
        "/v1/explain/_group.blue/train-1",
        "/v1/cluster?namespace=_group.blue",
        "/v1/nodes/n1?namespace=_group.blue",
        "/v1/would?namespace=_group.blue",
        "/v1/overuse?namespace=_group.blue",
    ],
)
def test_what_takes_no_group_says_so(path: str, books: Books) -> None:
    answer = books.get(path)

    assert (answer.status_code, answer.get_json()["field"]) == (400, "namespace")
    assert (
        answer.get_json()["detail"] == "it must be the name of a namespace; of a group, one of its namespaces"
    )
