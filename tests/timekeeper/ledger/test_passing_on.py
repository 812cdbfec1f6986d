"""A group's lead passes its budget on to its namespaces: never more than the group was granted, also where
several ask at the same time."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deploy.local.limits import LONGEST_S
from tests.support.profile import examples
from tests.timekeeper.books import Books, Run, days
from tests.timekeeper.worlds import DAY, HOUR, T0, token, user_status
from timekeeper.api import sheets
from timekeeper.api.create_app import create_app
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.runtime.auth.gate import Gate
from timekeeper.store import grants
from timekeeper.store import grants as stored
from timekeeper.store.grants import GrantFilter

BOTH_DATABASES = "amounts that are passed on at the same time wait for each other's locks"
Json = dict[str, Any]

HOURS = 3_600_000_000
MEMBER = "gpuHours: 0\nperiod: month\ngroup: blue"


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    """team-a and team-b have nothing of their own in group blue, which has 100 GPU-hours a month."""
    built = Books(database_url, patience_ms=60_000)  # four that write at once, on a busy machine
    built.entries(
        ("team-a", MEMBER, 0),
        ("team-b", MEMBER, 0),
        ("other", "gpuHours: 10\nperiod: month", 0),
        ("free", "gpuHours: unlimited\nonExhausted: deny\ngroup: blue", 0),
        ("_group.blue", "gpuHours: 100\nperiod: month", 0),
    )
    yield built
    built.close()


def give(
    books: Books, namespace: str, hours: str, key: str = "k", who: str = "lead", group: str = "blue"
) -> tuple[int, Json]:
    books.reviews.tokens[token(who)] = user_status(who)
    body = {"namespace": namespace, "gpuHours": hours, "reason": "sprint 4"}
    path = f"/v1/groups/{group}/grants"
    answer = books.post(path, body, bearer=token(who), **{"Idempotency-Key": key})
    return answer.status_code, answer.get_json()


def serve(books: Books, gate: Gate) -> None:
    """The API with this gate."""
    books.client = create_app(books.store, gate, books.clock, str, 5_000).test_client()


def split(books: Books, group: str = "blue") -> Json:
    found: Json = books.get(f"/v1/groups/{group}/grants").get_json()
    return found


def granted(books: Books, subject: str) -> str:
    return str(books.get(f"/v1/budgets/{subject}").get_json()["gpuHours"]["granted"])


def test_a_part_of_the_groups_budget_is_the_namespaces_and_the_rest_is_left(books: Books) -> None:
    first = give(books, "team-a", "30")

    assert first[0] == 200
    assert give(books, "team-a", "30") == first, "the same key grants once"
    (row,) = first[1]["grants"]
    assert (row["subject"], row["gpuHours"], row["kind"], row["group"], row["actor"]) == (
        *("team-a", "30", "transfer", "blue", "lead"),
    )
    assert give(books, "team-b", "70.00000001", key="2") == (
        409,
        {
            "type": "about:blank",
            "title": "Conflict",
            "status": 409,
            "detail": "100 GPU-hours were granted to group blue, and 30 of them are passed on: 70 are left",
            "field": "gpuHours",
        },
    )
    assert give(books, "team-b", "70", key="3")[0] == 200
    assert [granted(books, each) for each in ("team-a", "team-b", "_group.blue")] == ["30", "70", "100"]
    told = split(books)
    assert told["gpuHours"] == {"granted": "100", "passedOn": "100", "left": "0"}
    assert told["mayPassOn"]
    assert [(each["namespace"], each["gpuHours"]) for each in told["namespaces"]] == [
        ("team-a", "30"),
        ("team-b", "70"),
    ]
    assert books.get("/v1/grants?subject=team-a").get_json()["grants"] == [row]


@pytest.mark.parametrize(
    ("used", "hours", "warned"),
    [
        (80, "30", "team-a now has 30.00 GPU-hours left of its own, and its group blue has 20.00: "),
        (80, "20", ""),
        (0, "100", ""),
    ],
)
def test_more_than_the_group_has_left_is_passed_on_with_a_warning(
    books: Books, used: int, hours: str, warned: str
) -> None:
    """Of the group's budget team-b used so many hours without having a part of it."""
    start = T0 - 200 * HOUR
    books.write(Run("b", "team-b", ended_ms=start + used * HOUR, posted=days(start, start + used * HOUR)))

    status, answer = give(books, "team-a", hours)

    assert (status, granted(books, "team-a")) == (200, hours)
    assert [sentence[: len(warned)] for sentence in answer["warnings"]] == [warned] * bool(warned)
    assert give(books, "team-a", hours) == (status, answer), "the same key, the same warning"


def test_a_grant_beyond_what_the_group_has_left_warns_too_and_one_to_the_group_does_not(books: Books) -> None:
    def grant(subject: str) -> Json:
        body = {"subject": subject, "gpuHours": "130", "reason": "r"}
        answer: Json = books.post("/v1/grants", body, **{"Idempotency-Key": subject}).get_json()
        return answer

    beyond = grant("team-a")["warnings"]
    assert beyond == [
        "team-a now has 130.00 GPU-hours left of its own, and its group blue has 100.00: it can use no more"
        " than its group has"
    ]
    assert sheets.GRANTS.table({"grants": [], "warnings": beyond}, T0)["warnings"] == [f"{beyond[0]}."]
    assert grant("_group.blue")["warnings"] == grant("other")["warnings"] == []


def test_only_what_was_passed_on_and_is_unused_is_taken_back(books: Books) -> None:
    give(books, "team-a", "30")
    books.write(Run("u", namespace="team-a", posted=days(T0, T0 + 10 * HOUR)))
    extra = {"subject": "team-b", "gpuHours": "9", "reason": "r"}
    books.post("/v1/grants", extra, **{"Idempotency-Key": "own"})

    code, problem = give(books, "team-a", "-20.00000001", key="2")
    assert (code, problem["detail"]) == (
        409,
        "30 GPU-hours were passed on to team-a for its running period: 20 can be taken back",
    )
    assert give(books, "team-b", "-1", key="3")[0] == 409, "an administrator's grant is not the lead's"
    assert give(books, "team-a", "-20", key="4")[0] == 200
    assert split(books)["gpuHours"] == {"granted": "100", "passedOn": "10", "left": "90"}
    assert granted(books, "team-a") == "10"


def test_each_change_is_a_decision_of_the_namespace_and_of_the_group(books: Books) -> None:
    give(books, "team-a", "30")
    give(books, "team-a", "-5", key="2")

    for subject in ("team-a", "_group.blue"):
        told = books.get(f"/v1/decisions?namespace={subject}&kind=grant").get_json()["decisions"]
        assert [(each["reason"], each["figures"]["actor"], each["figures"]["amount"]) for each in told] == [
            ("TakenBack", "lead", -5 * HOURS),
            ("PassedOn", "lead", 30 * HOURS),
        ]
        assert told[1]["sentence"] == (
            "30 GPU-hours were passed on to team-a by group blue, by lead: sprint 4"
        )


def test_the_right_is_that_of_the_group(books: Books) -> None:
    asked: list[Json] = []
    post = books.reviews.post

    def record(path: str, body: Any) -> Json:
        asked.append(body["spec"].get("resourceAttributes"))
        return post(path, body)

    serve(books, Gate(record, "bursar", books.clock))
    books.reviews.denied.add(("ann", "create", "groups", "blue"))

    assert give(books, "team-a", "1", who="ann")[0] == 403
    right = {"group": "bursar.dev", "resource": "groups", "subresource": "grants", "verb": "create"}
    assert {**right, "namespace": "", "name": "blue"} in asked
    assert books.get("/v1/groups/blue/grants", token("ann")).get_json()["mayPassOn"] is False
    assert books.get("/v1/grants?subject=team-a").get_json()["grants"] == []
    books.reviews.denied.add(("admin", "get", "grants", "_group.blue"))
    assert books.get("/v1/groups/blue/grants").status_code == 403


@pytest.mark.parametrize(
    ("namespace", "group", "field", "detail"),
    [
        ("other", "blue", "namespace", "other is not in group blue"),
        ("team-a", "red", "namespace", "team-a is not in group red"),
        ("free", "blue", "namespace", "free has no budget: it is unlimited"),
    ],
)
def test_the_namespace_must_be_of_the_group_and_have_a_budget(
    books: Books, namespace: str, group: str, field: str, detail: str
) -> None:
    code, problem = give(books, namespace, "1", group=group)

    assert (code, problem["field"], problem["detail"]) == (409, field, detail)


def test_a_group_without_a_limit_has_nothing_to_pass_on(books: Books) -> None:
    books.entries(("lone", "gpuHours: 1\ngroup: red", T0))

    code, problem = give(books, "lone", "1", group="red")

    assert (code, problem["detail"]) == (409, "group red has no budget: it is unlimited")
    assert split(books, "red")["left"] is None


def test_a_key_stands_for_one_body_on_both_routes(books: Books) -> None:
    give(books, "team-a", "30")

    assert give(books, "team-a", "31")[0] == 422
    body = {"subject": "team-a", "gpuHours": "30", "reason": "sprint 4"}
    key = {"Idempotency-Key": "k"}
    assert books.post("/v1/grants", body, bearer=token("lead"), **key).status_code == 422


def test_what_is_passed_on_is_not_taken_from_the_group(books: Books) -> None:
    give(books, "team-a", "30")
    body = {"subject": "_group.blue", "gpuHours": "-70.5", "kind": "correction", "reason": "r"}

    answer = books.post("/v1/grants", body, **{"Idempotency-Key": "c"})

    assert answer.status_code == 409
    assert answer.get_json()["detail"] == "group blue has passed on 30 GPU-hours: only 70 can be taken"
    body["gpuHours"] = "-70"
    assert books.post("/v1/grants", body, **{"Idempotency-Key": "d"}).status_code == 200


def test_concurrent_leads_never_pass_on_more_than_there_is(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that has read what is passed on waits there until all have begun their transactions."""
    leads, begun, most_begun = 4, threading.Semaphore(0), []
    writing, read = books.store.writing, stored.passed_on
    lock, is_first = threading.Lock(), iter((True,))

    def counted(turn: str = "") -> Any:
        begun.release()
        return writing(turn=turn)

    def slow(*arguments: Any) -> Any:
        found = read(*arguments)
        with lock:
            first = next(is_first, False)
        if first:
            most_begun.append([begun.acquire(timeout=LONGEST_S) for _ in range(leads)])
        return found

    monkeypatch.setattr(books.store, "writing", counted)
    monkeypatch.setattr(stored, "passed_on", slow)
    codes: list[int] = []

    def ask(number: int) -> None:
        codes.append(give(books, f"team-{'ab'[number % 2]}", "30", who=f"lead-{number}")[0])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(leads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most_begun == [[True] * leads], "four transactions were open or waiting at once"
    assert sorted(codes) == [200, 200, 200, 409]
    assert split(books)["gpuHours"] == {"granted": "100", "passedOn": "90", "left": "10"}


def test_the_audit_names_a_group_that_has_passed_on_more_than_it_was_ever_granted(books: Books) -> None:
    body = {"subject": "_group.blue", "gpuHours": "40", "reason": "r"}
    assert books.post("/v1/grants", body, **{"Idempotency-Key": "g"}).status_code == 200
    give(books, "team-a", "30")
    assert audited(books) == []

    with books.store.writing() as connection:
        (known,) = grants.page(connection, GrantFilter("team-a"), 1)
        grants.give(connection, replace(known.grant, idempotency_key="forged"))

    assert audited(books) == ["passed on: stored 60 GPU-hours, by the evidence at most 40 GPU-hours"]


def audited(books: Books) -> list[str]:
    found: list[Finding] = []
    with books.store.reading() as connection:
        audit(connection, books.clock(), found.append)
    return [f"{each.what}: stored {each.stored}, by the evidence {each.evidence}" for each in found]


@dataclass
class Oracle:
    """The rules once more, from what was asked alone. Days and weeks are those of UTC, weeks from Monday."""

    books: dict[str, tuple[int, str]]  # subject -> GPU-hours and period
    members: set[str]
    rows: list[tuple[str, int, int, int | None]] = field(
        default_factory=list
    )  # subject, begin, amount, group's
    used: list[tuple[str, int, int]] = field(default_factory=list)

    def begin(self, subject: str, at: int) -> int:
        day = at // DAY
        week = self.books[subject][1] == "week"
        return (day - (day + 3) % 7 if week else day) * DAY

    def granted(self, subject: str, at: int) -> int:
        begin = self.begin(subject, at)
        rows = (amount for name, since, amount, _ in self.rows if (name, since) == (subject, begin))
        return self.books[subject][0] * HOURS + sum(rows)

    def passed_on(self, group: str, at: int) -> int:
        begin = self.begin(group, at)
        return sum(amount for _, _, amount, since in self.rows if since == begin)

    def left(self, group: str, at: int) -> int:
        return max(0, self.granted(group, at) - self.passed_on(group, at))

    def remaining(self, name: str, at: int) -> int:
        begin = self.begin(name, at)
        return self.granted(name, at) - sum(
            each for who, since, each in self.used if (who, since) == (name, begin)
        )

    def takes(self, group: str, name: str, amount: int, at: int) -> bool:
        """Whether the lead may do it, and if so it is done."""
        if name not in self.members:
            return False
        own, begin = self.begin(name, at), self.begin(group, at)
        received = sum(each for who, since, each, by in self.rows if (who, since, by) == (name, own, begin))
        most = self.left(group, at) if amount > 0 else min(received, self.remaining(name, at))
        if abs(amount) > max(0, most):
            return False
        self.rows.append((name, own, amount, begin))
        return True


STEPS = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 1), st.integers(-12, 24).filter(bool)),
    st.tuples(st.just("wait"), st.integers(0, 1), st.integers(1, 40)),
    st.tuples(st.just("use"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.just("say"), st.integers(0, 1), st.integers(0, 30)),
    st.tuples(st.just("move"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("correct"), st.integers(0, 1), st.integers(-12, 12).filter(bool)),
)


class Story:
    """A group of its own on the books, and the oracle's view of it."""

    def __init__(self, books: Books, number: int) -> None:
        self.books, self.count = books, 0
        self.group, self.key = f"g{number}", f"_group.g{number}"
        self.names = (f"a{number}", f"b{number}")
        periods = dict(zip((*self.names, self.key), ("day", "week", "day"), strict=True))
        self.oracle = Oracle({name: (2, period) for name, period in periods.items()}, set(self.names))
        self.oracle.books[self.key] = (20, "day")
        self.number = number
        for name in (*self.names, self.key):
            self.write(name)

    def write(self, subject: str) -> None:
        """The entry as it is now."""
        self.books.clock.turn(1)
        hours, period = self.oracle.books[subject]
        group = f"\ngroup: {self.group}" if subject in self.oracle.members else ""
        text = f"gpuHours: {hours}\nperiod: {period}{group}"
        self.books.entries((subject, text, self.books.clock()))

    def step(self, kind: str, which: int, amount: int) -> None:
        """One thing happens, there and to the oracle."""
        self.count += 1
        name, now, key = self.names[which], self.books.clock(), f"{self.number}-{self.count}"
        if kind == "pass":
            code, problem = give(self.books, name, str(amount), key, group=self.group)
            done = self.oracle.takes(self.key, name, amount * HOURS, now)
            assert code == (200 if done else 409), problem
        elif kind == "wait":
            self.books.clock.turn(amount * HOUR)
        elif kind == "use":
            begin = self.oracle.begin(name, now)
            start = max(begin, now - HOUR)
            if start < now:
                self.books.write(Run(key, namespace=name, rate=1000 * amount, posted=days(start, now)))
                self.oracle.used.append((name, begin, 1000 * amount * (now - start)))
        elif kind == "say":
            self.oracle.books[self.key] = (amount, "day")
            self.write(self.key)
        elif kind == "move":
            self.oracle.members ^= {name}
            self.write(name)
        else:
            self.correct(amount, key, now)

    def correct(self, amount: int, key: str, now: int) -> None:
        """An administrator corrects the group's grant."""
        body = {"subject": self.key, "gpuHours": str(amount), "kind": "correction", "reason": "r"}
        code = self.books.post("/v1/grants", body, **{"Idempotency-Key": key}).status_code
        allowed = amount > 0 or -amount * HOURS <= self.oracle.left(self.key, now)
        assert code == (200 if allowed else 409)
        if allowed:
            self.oracle.rows.append((self.key, self.oracle.begin(self.key, now), amount * HOURS, None))

    def check(self) -> None:
        """What is told is what the oracle knows."""
        now, told = self.books.clock(), split(self.books, self.group)
        figures = {name: told[name] for name in ("granted", "passedOn", "left")}
        assert figures == {
            "granted": self.oracle.granted(self.key, now),
            "passedOn": self.oracle.passed_on(self.key, now),
            "left": self.oracle.left(self.key, now),
        }
        for name in self.names:
            account = self.books.get(f"/v1/balances/{name}").get_json()
            assert account["granted"] == self.oracle.granted(name, now)
            assert account["remaining"] == self.oracle.remaining(name, now)


def test_after_any_grants_and_entries_the_sums_are_the_oracles(books: Books) -> None:
    began = books.clock()
    serve(books, Gate(books.reviews.post, "bursar", lambda: began))  # its tokens last
    numbers = iter(range(100_000))

    @settings(
        max_examples=examples(8 if books.store.is_shared else 25, soak=300),
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(steps=st.lists(STEPS, min_size=4, max_size=24))
    def tell(steps: list[tuple[str, int, int]]) -> None:
        story = Story(books, next(numbers))
        for each in steps:
            story.step(*each)
        story.check()

    tell()
