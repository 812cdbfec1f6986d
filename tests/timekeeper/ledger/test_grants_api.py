"""Extra grants, corrections and moves over REST: once for each key, by whoever may, and never more than there
is."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.listed import write_accounts
from tests.timekeeper.worlds import HOUR, T0, budgets, node, token, user_status
from tests.timekeeper.worlds import Town as Whole
from timekeeper.api.create_app import create_app
from timekeeper.core.budgets.policy import GPU_HOUR
from timekeeper.runtime.auth.gate import Gate

BOTH_DATABASES = "grants at the same time wait for each other's locks"
Json = dict[str, Any]

IN_GROUP = "gpuHours: 10\nperiod: month\ngroup: blue"


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    """team-a and team-b have ten GPU-hours each in group blue, other ten in none, and free no limit."""
    built = Books(database_url)
    built.entries(
        ("team-a", IN_GROUP, 0),
        ("team-b", IN_GROUP, 0),
        ("other", "gpuHours: 10\nperiod: month", 0),
        ("_group.blue", "gpuHours: 100\nperiod: month", 0),
    )
    yield built
    built.close()


def give(books: Books, body: Json | bytes, key: str = "k", who: str = "") -> tuple[int, Json]:
    bearer = {"bearer": token(who)} if who else {}
    if who:
        books.reviews.tokens[token(who)] = user_status(who)
    answer = books.post("/v1/grants", body, **bearer, **{"Idempotency-Key": key})
    return answer.status_code, answer.get_json()


def asked(**changes: object) -> Json:
    return {"subject": "team-a", "gpuHours": "1.5", "reason": "ticket 7"} | changes


def left(books: Books, namespace: str) -> str:
    return str(books.get(f"/v1/balances/{namespace}").get_json()["gpuHours"]["remaining"])


def written(books: Books) -> list[Json]:
    found: list[Json] = books.get("/v1/grants").get_json()["grants"]
    return found


def test_a_grant_is_made_once_and_a_repetition_returns_it(books: Books) -> None:
    first = give(books, asked())
    books.clock.turn(HOUR)

    assert give(books, asked()) == first
    assert first[0] == 200
    (grant,) = first[1]["grants"]
    assert written(books) == [grant]
    assert (grant["kind"], grant["actor"], grant["reason"]) == ("manual", "admin", "ticket 7")
    assert (grant["amount"], grant["gpuHours"]) == (3 * GPU_HOUR // 2, "1.5")
    assert left(books, "team-a") == "11.5"


@pytest.mark.parametrize(
    "other",
    [
        {"gpuHours": "1.6"},
        {"subject": "team-b"},
        {"reason": "another"},
        {"kind": "correction"},
        {"from": "team-b"},
    ],
)
def test_a_key_stands_for_one_body(books: Books, other: Json) -> None:
    give(books, asked())

    code, problem = give(books, asked(**other))

    assert (code, problem["field"]) == (422, "Idempotency-Key")
    assert len(written(books)) == 1


def test_a_key_is_its_callers_own(books: Books) -> None:
    assert [give(books, asked(), who=who)[0] for who in ("ann", "bob", "a/b")] == [200] * 3
    assert [give(books, asked(), key=key, who="a")[0] for key in ("b/k", "k")] == [200] * 2
    assert left(books, "team-a") == "17.5"


def test_hours_are_taken_as_they_were_written(books: Books) -> None:
    for number, hours in enumerate((b'"0.1"', b"0.1", b"1e-1", b'"0.00000001"', b"1")):
        body = b'{"subject": "team-a", "reason": "r", "gpuHours": ' + hours + b"}"
        assert give(books, body, key=str(number))[0] == 200, hours
    assert [each["amount"] for each in written(books)] == [*[GPU_HOUR // 10] * 3, 36, GPU_HOUR]


BAD: list[tuple[Json | bytes, str | None]] = [
    (b"", None),
    (b"[]", None),
    (b"{", None),
    (b"[" * 100_000, None),
    (b'{"subject": "team-a", "subject": "team-b", "gpuHours": 1, "reason": "r"}', "subject"),
    (b'{"subject": "team-a", "gpuHours": NaN, "reason": "r"}', None),
    (b'{"subject": "team-a", "gpuHours": ' + b"9" * 5_000 + b', "reason": "r"}', None),
    (b'{"subject": "team-a", "gpuHours": 1e99999999999999999999, "reason": "r"}', "gpuHours"),
    (b'{"subject": "team-a", "gpuHours": -1e-99999999999999999999, "reason": "r"}', "gpuHours"),
    (b'{"subject": "team-a", "gpuHours": 1e999999, "reason": "r"}', "gpuHours"),
    (b'{"subject": "team-a", "gpuHours": 0e999999, "reason": "r"}', "gpuHours"),
    (b'{"subject": "team-a", "amount": 1e99999999999999999999, "reason": "r"}', "amount"),
    (b'{"subject": "team-a", "gpuHours": 1, "reason": 1e99999999999999999999}', "reason"),
    (b'{"\\ud800": 1}', None),
    (asked(colour="red"), "colour"),
    (asked(subject="Team-A"), "subject"),
    (asked(subject="_group."), "subject"),
    (asked(subject="'; DROP TABLE grants; --"), "subject"),
    (asked(subject=None), "subject"),
    (asked(gpuHours="1.123456789"), "gpuHours"),
    (asked(gpuHours=1.123456789), "gpuHours"),
    (asked(gpuHours="1e3"), "gpuHours"),
    (asked(gpuHours=" 1"), "gpuHours"),
    (asked(gpuHours="1_0"), "gpuHours"),
    (asked(gpuHours="\u0661"), "gpuHours"),
    (asked(gpuHours="0"), "gpuHours"),
    (asked(gpuHours="-1"), "gpuHours"),
    (asked(gpuHours=True), "gpuHours"),
    (asked(gpuHours=1e300), "gpuHours"),
    (asked(gpuHours="9999999999"), "gpuHours"),
    (asked(amount=5), "gpuHours"),
    ({"subject": "team-a", "reason": "r"}, "gpuHours"),
    ({"subject": "team-a", "reason": "r", "amount": 1.0}, "amount"),
    ({"subject": "team-a", "reason": "r", "amount": "1"}, "amount"),
    ({"subject": "team-a", "reason": "r", "amount": -1}, "amount"),
    ({"subject": "team-a", "reason": "r", "amount": 2**63}, "amount"),
    (asked(reason=""), "reason"),
    (asked(reason="x" * 501), "reason"),
    (asked(reason="a\u0000b"), "reason"),
    (asked(reason="two\nlines"), "reason"),
    (b'{"subject": "team-a", "gpuHours": 1, "reason": "\\ud800"}', None),
    ({"subject": "team-a", "gpuHours": 1}, "reason"),
    (asked(kind="period"), "kind"),
    (asked(kind="transfer"), "kind"),
    (asked(**{"from": "team-b", "kind": "manual"}), "kind"),
    (asked(**{"from": "team-a"}), "subject"),
    (asked(**{"from": "_group.blue"}), "from"),
    (asked(subject="_group.blue", **{"from": "team-b"}), "subject"),
    (asked(gpuHours="-1", **{"from": "team-b"}), "gpuHours"),
]


def test_what_cannot_be_granted_is_400_and_names_the_field(books: Books) -> None:
    for body, field in BAD:
        code, problem = give(books, body)
        assert (code, problem.get("field")) == (400, field), (body, problem)

    assert written(books) == []
    counted = books.get("/metrics").text
    assert 'bursar_requests_total{route="/v1/grants",status="400"}' in counted


def test_a_grant_needs_a_key_and_a_body_of_some_size(books: Books) -> None:
    assert books.post("/v1/grants", asked()).get_json()["field"] == "Idempotency-Key"
    assert give(books, asked(), key="with blank")[0] == 400
    assert give(books, b" " * 300_000)[0] == 413
    assert written(books) == []


def test_a_correction_may_take_but_no_more_than_was_granted(books: Books) -> None:
    assert give(books, asked(gpuHours="-4", kind="correction"))[0] == 200
    assert left(books, "team-a") == "6"

    code, problem = give(books, asked(gpuHours="-6.00000001", kind="correction"), key="2")
    assert (code, problem["detail"]) == (409, "only 6 GPU-hours were granted to team-a")
    assert left(books, "team-a") == "6"


def test_the_settler_takes_no_correction_back(town: Whole) -> None:
    town.begin(("nodes", node()), ("configmaps", budgets(team_a="gpuHours: 10")))
    body = {"subject": "team-a", "gpuHours": "-4", "kind": "correction", "reason": "r"}
    assert town.post("/v1/grants", body, **{"Idempotency-Key": "k"}).status_code == 200

    for text in ("gpuHours: 10", "gpuHours: 11"):
        town.clock.turn(HOUR)
        town.hear("configmaps", budgets(team_a=text))
        town.tick()

    assert town.budget()["gpuHours"]["granted"] == "7"


def test_nothing_is_granted_to_who_has_no_limit(books: Books) -> None:
    code, problem = give(books, asked(subject="free"))

    assert (code, problem["field"]) == (409, "subject")


def test_a_grant_to_a_group_needs_the_right_to_grant_to_it(books: Books) -> None:
    books.reviews.denied.add(("ann", "create", "grants", "_group.blue"))

    assert give(books, asked(subject="_group.blue"), who="ann")[0] == 403
    assert give(books, asked(subject="_group.blue"), who="bob")[0] == 200
    assert written(books)[0]["subject"] == "_group.blue"


def test_what_is_left_moves_between_namespaces_of_a_group(books: Books) -> None:
    books.write(Run("u", namespace="team-a", posted=days(T0, T0 + 4 * HOUR)))
    books.clock.at_ms = T0 + 5 * HOUR
    move = asked(**{"from": "team-a", "subject": "team-b", "gpuHours": "6"})

    code, given = give(books, move)

    assert code == 200
    assert [(each["subject"], each["gpuHours"], each["kind"]) for each in given["grants"]] == [
        ("team-a", "-6", "transfer"),
        ("team-b", "6", "transfer"),
    ]
    assert (left(books, "team-a"), left(books, "team-b")) == ("0", "16")
    assert give(books, move) == (code, given)
    code, problem = give(
        books, asked(**{"from": "team-a", "subject": "team-b", "gpuHours": "0.00000001"}), key="2"
    )
    assert (code, problem["detail"]) == (409, "team-a has only 0 GPU-hours left")


def test_a_move_needs_the_right_to_grant_to_the_group(books: Books) -> None:
    move = asked(**{"from": "team-a", "subject": "team-b"})
    books.reviews.denied |= {("ann", "create", "grants", "_group.blue"), ("bob", "create", "grants", "")}

    assert give(books, move, who="ann")[0] == 403
    assert give(books, move, who="bob")[0] == 200
    outside = asked(**{"from": "team-a", "subject": "other"})
    assert give(books, outside, who="bob")[0] == 403
    code, problem = give(books, outside, who="cleo")
    assert (code, problem["field"]) == (409, "from")


def test_a_caller_without_the_right_learns_nothing_of_groups(books: Books) -> None:
    books.reviews.denied |= {("ann", "create", "grants", "_group.blue"), ("ann", "create", "grants", "")}

    told = [give(books, asked(**{"from": "team-a", "subject": to}), who="ann") for to in ("team-b", "other")]

    assert [code for code, _ in told] == [403, 403]
    details = [problem["detail"].replace("team-b", "other") for _, problem in told]
    assert details[0] == details[1]
    assert "blue" not in details[0]


def test_a_move_is_made_in_the_group_that_the_caller_may_grant_to_or_not_at_all(books: Books) -> None:
    def post(path: str, body: Any) -> Json:
        """While the API server thinks about ann's right, both namespaces join another group."""
        attributes = body["spec"].get("resourceAttributes")
        if attributes:
            assert attributes["name"] == "_group.blue"
            red = IN_GROUP.replace("blue", "red")
            books.entries(("team-a", red, T0), ("team-b", red, T0))
        return books.reviews.post(path, body)

    app = create_app(books.store, Gate(post, "bursar", books.clock), books.clock, str, 5_000)
    sent = {"Authorization": f"Bearer {token('admin')}", "Idempotency-Key": "k"}

    answer = app.test_client().post(
        "/v1/grants", json=asked(**{"from": "team-a", "subject": "team-b"}), headers=sent
    )

    assert (answer.status_code, answer.get_json()["field"]) == (409, "from")
    assert written(books) == []


def test_of_two_moves_at_once_only_what_is_left_is_given(books: Books) -> None:
    codes: list[int] = []
    write_accounts(books.store, books.clock())
    headers = {"Authorization": f"Bearer {token('admin')}"}

    def move(number: int) -> None:
        body = json.dumps(asked(**{"from": "team-a", "subject": "team-b", "gpuHours": "6"}))
        sent = headers | {"Idempotency-Key": str(number)}
        codes.append(books.app.test_client().post("/v1/grants", data=body, headers=sent).status_code)

    threads = [threading.Thread(target=move, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(codes) == [200, 409, 409, 409]
    assert (left(books, "team-a"), left(books, "team-b")) == ("4", "16")


def test_the_same_request_sent_twice_at_once_is_one_grant(books: Books) -> None:
    answers: list[Json] = []
    threads = [threading.Thread(target=lambda: answers.append(give(books, asked())[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers[0]["grants"]
    assert answers == [answers[0]] * 4
    assert left(books, "team-a") == "11.5"


def test_grants_are_listed_page_by_page_and_by_subject(books: Books) -> None:
    for number in range(5):
        give(books, asked(subject=("team-a", "team-b")[number % 2]), key=str(number))

    page = books.get("/v1/grants?subject=team-a&limit=2")
    follows = books.get(page.headers["Link"].removeprefix("<").partition(">")[0]).get_json()

    assert [each["subject"] for each in page.get_json()["grants"]] == ["team-a"] * 2
    assert (len(follows["grants"]), follows["next"]) == (1, None)
    assert books.get("/v1/grants?subject=nobody").get_json()["grants"] == []


def test_who_may_see_one_namespaces_grants_sees_no_others(books: Books) -> None:
    books.reviews.denied |= {("admin", "get", "grants", ""), ("admin", "get", "grants", "_group.blue")}

    assert books.get("/v1/grants").status_code == 403
    assert books.get("/v1/grants?subject=_group.blue").status_code == 403
    assert books.get("/v1/grants?subject=team-a").status_code == 200
