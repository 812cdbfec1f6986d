"""Usage reports over whatever the ledger may hold, held against sums that are made here row by row."""

import csv
import io
import itertools
import json
import re
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Text, bindparam, cast, delete, event, func, insert, literal, select

from tests.postgresql import fresh_postgresql
from tests.support.profile import examples
from tests.support.shared_routes import SharingFlask
from tests.timekeeper.books import Books, Json, Run, days, posting_row, session_row
from tests.timekeeper.clocks import at_ms, iso
from tests.timekeeper.one_by_one import figures_of
from tests.timekeeper.plans import Statements
from tests.timekeeper.worlds import ADMIN, DAY, GPU, HOUR, MINUTE, T0, token, user_status
from timekeeper.accounts.balance import UnsettledSession
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.api.create_app import app_of
from timekeeper.api.http.routes import TABLE
from timekeeper.api.ledger.seats import SEATS, Seats
from timekeeper.core.ledger.metering import Evidence, Interval, WitnessedInterval, witnessed
from timekeeper.store.engine.schema import HEARTBEATS, NODES, POSTINGS, SESSIONS
from timekeeper.store.sessions import CHARGED, WITNESSED, pending

BOTH_DATABASES = "reports are SQL"
MIDNIGHT = at_ms("2026-11-20T00:00:00Z")
BEGIN = MIDNIGHT - 3 * DAY  # of the times that drawn ledgers lie in
SPAN = 6 * DAY

ON_A_DATABASE = settings(
    max_examples=examples(20, soak=1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    built = Books(database_url)
    yield built
    built.close()


# Everything that a ledger may hold, and a brute sum of it


@st.composite
def runs(draw: st.DrawFn, number: int) -> Run:
    """A session that ended and is posted, with corrections or not, or one that runs, posted for a while."""
    start = BEGIN + draw(st.integers(0, SPAN // MINUTE)) * MINUTE
    length = draw(st.sampled_from((1, 7, MINUTE, HOUR, DAY, 2 * DAY + 5)))
    is_open = draw(st.booleans())
    run = Run(
        f"uid-{number}",
        namespace=draw(st.sampled_from(("team-a", "team-b", "c"))),
        owner=draw(st.sampled_from(("", "Job/train", "Deployment/web"))),
        node=draw(st.sampled_from(("n1", "n2"))),
        models=draw(st.sampled_from(("A100", "H100", ""))),
        labels=draw(st.sampled_from(((), (("team", "x"),), (("team", "y"), ("a/b.c", "=1"))))),
        rate=draw(st.sampled_from((1, 250, 1000, 2500))),
        requested=draw(st.sampled_from((0, 100, 1000))),
        started_ms=start,
        ended_ms=None if is_open else start + length,
        heard_ms=start + length,
        settled=not is_open,
    )
    if is_open:
        return replace(run, posted=days(start, start + draw(st.sampled_from((0, length // 2, length)))))
    posted = days(start, start + length)
    wrong = draw(st.sampled_from((0, 5)))
    if wrong:  # posted too far at first, then taken back
        posted += (*days(start + length, start + length + wrong),)
        posted += tuple((a, b, -1) for a, b, _ in days(start + length, start + length + wrong))
    return replace(run, posted=posted)


ledgers = st.integers(1, 6).flatmap(lambda count: st.tuples(*(runs(number) for number in range(count))))


def truth(run: Run) -> tuple[int, int]:
    """When the session held its cards, as far as the evidence goes."""
    return run.started_ms, run.heard_ms if run.ended_ms is None else run.ended_ms


def overlap(one: tuple[int, int], other: tuple[int, int]) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


Key = Callable[[Run], tuple[str, ...]]


def brute(ledger: Iterable[Run], key: Key, steps: list[tuple[int, int]]) -> dict[tuple[object, ...], int]:
    """What is charged in all, by step and by a function of the session."""
    sums: dict[tuple[object, ...], int] = defaultdict(int)
    for run in ledger:
        for step in steps:
            sums[(step[0], *key(run))] += run.rate * overlap(truth(run), step)
    return {each: amount for each, amount in sums.items() if amount}


def calendar(start: int, end: int, by: str, zone: str) -> list[tuple[int, int]]:
    """The steps of a time by the calendar, made from wall clocks alone."""
    if by == "all":
        return [(start, end)]
    tz = ZoneInfo(zone)
    cuts = [start]
    at = start - start % (15 * MINUTE) + 15 * MINUTE  # every zone's hours begin at a quarter
    while at < end:
        local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)).astimezone(tz)
        is_hour = local.minute == 0
        if {"hour": is_hour, "day": is_hour and local.hour == 0}[by]:
            cuts.append(at)
        at += 15 * MINUTE
    return list(itertools.pairwise([*cuts, end]))


KEYS: dict[str, Key] = {
    "namespace": lambda run: (run.namespace,),
    "pod": lambda run: (run.namespace, run.uid),
    "owner": lambda run: (run.namespace, run.owner),
    "node": lambda run: (run.node,),
    "model": lambda run: (run.models,),
    "node,model": lambda run: (run.node, run.models),
    "label:team": lambda run: (dict(run.labels).get("team", ""),),
    "label:a/b.c": lambda run: (dict(run.labels).get("a/b.c", ""),),
}
COLUMNS = {
    "pod": ("namespace", "uid"),
    "owner": ("namespace", "owner"),
    "model": ("models",),
    "node,model": ("node", "models"),
}


def told(row: Json, group: str, start: int) -> tuple[object, ...]:
    """A row's step and key, as `brute` has them."""
    if group.startswith("label:"):
        return row.get("from", start), row["labels"][group.removeprefix("label:")]
    return (row.get("from", start), *(row[name] for name in COLUMNS.get(group, (group,))))


@ON_A_DATABASE
@given(
    ledger=ledgers,
    group=st.sampled_from(sorted(KEYS)),
    by=st.sampled_from(("all", "hour", "day")),
    zone=st.sampled_from(("UTC", "Europe/Berlin", "Asia/Kathmandu")),
    bounds=st.tuples(st.integers(0, SPAN), st.integers(1, SPAN)),
    use=st.booleans(),
)
def test_every_report_is_the_sum_of_what_the_evidence_proves(
    books: Books,
    ledger: tuple[Run, ...],
    group: str,
    by: str,
    zone: str,
    bounds: tuple[int, int],
    use: bool,
) -> None:
    books.clock.at_ms = BEGIN + 2 * SPAN
    start, end = BEGIN + bounds[0], BEGIN + sum(bounds)
    with wiped(books):
        books.write(*ledger)
        query = f"from={start}&to={end}&group={group}&by={by}&timeZone={zone}&use={str(use).lower()}"
        rows = books.rows(query)

    expected = brute(ledger, KEYS[group], calendar(start, end, by, zone))
    assert {told(row, group, start): row["amount"] for row in rows if row["amount"]} == expected
    if use:
        asked = sum(run.requested * overlap(truth(run), (start, end)) for run in ledger)
        assert sum(row["requested"] for row in rows) == asked


@contextmanager
def wiped(books: Books) -> Iterator[None]:
    """What is written inside is gone afterwards: one database for all examples of a test."""
    try:
        yield
    finally:
        with books.store.writing() as connection:
            connection.exec_driver_sql("UPDATE sessions SET folded_ms = 1")  # or no posting may be deleted
            for table in ("figures", "heartbeats", "postings", "sessions", "nodes", "days"):
                connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 -- names from above


@st.composite
def evidence(draw: st.DrawFn) -> tuple[Evidence, int | None]:
    """Whatever may be known of a session, and its node's watermark."""
    moments = st.integers(1_000, 2_000)
    end = draw(st.sampled_from(("none", "ended", "never ran", "vanished")))
    node = draw(st.none() | moments)
    known = Evidence(
        bound_ms=draw(moments),
        started_ms=draw(st.none() | moments),
        ended_ms={"ended": draw(moments), "never ran": 0}.get(end),
        beat_ms=draw(st.none() | moments),
        watermark_ms=draw(st.none() | moments) if end != "none" else node,
        vanished_ms=draw(moments) if end == "vanished" else None,
        grace_ms=draw(st.integers(0, 500)),
    )
    return known, node


@ON_A_DATABASE
@given(drawn=evidence(), now_ms=st.integers(1_000, 3_000))
def test_what_is_due_in_sql_is_what_is_witnessed(
    books: Books, drawn: tuple[Evidence, int | None], now_ms: int
) -> None:
    known, node = drawn
    row = session_row(Run("u", settled=False)) | {
        **{
            name: getattr(known, name)
            for name in ("bound_ms", "started_ms", "ended_ms", "vanished_ms", "grace_ms")
        },
        "watermark_ms": known.watermark_ms if known.ended_ms is not None or known.vanished_ms else None,
    }
    with wiped(books):
        with books.store.writing() as connection:
            connection.execute(insert(SESSIONS), [row])
            if node is not None:
                connection.execute(insert(NODES), [{"name": "n1", "watermark_ms": node}])
            if known.beat_ms is not None:
                beat = {"session_uid": "u", "boot": "b", "sequence": 1, "received_ms": 5_000}
                connection.execute(insert(HEARTBEATS), [{**beat, "beat_ms": known.beat_ms}])
        with books.store.reading() as connection:
            charged = select(SESSIONS.c.bound_ms, CHARGED.end_ms, CHARGED.closed, CHARGED.proven)
            found = connection.execute(charged.select_from(WITNESSED), {"now_ms": now_ms})
            start, end, closed, proven = found.one()

    assert WitnessedInterval(Interval(start, end), bool(closed), bool(proven)) == witnessed(known, now_ms)


@ON_A_DATABASE
@given(data=st.data(), now_ms=st.integers(1_000, 3_000))
def test_open_sums_in_sql_are_those_of_the_sessions_one_by_one(
    books: Books, data: st.DataObject, now_ms: int
) -> None:
    moments, spans = st.integers(1_000, 2_500), st.tuples(st.integers(0, 1_800), st.integers(1, 1_500))
    open_sessions: dict[str, list[UnsettledSession]] = {"team-a": [], "team-b": []}
    rows, beats, nodes, postings = [], [], [], []
    for number in range(data.draw(st.integers(1, 3))):
        known, node = data.draw(evidence())
        uid, namespace = f"u{number}", data.draw(st.sampled_from(sorted(open_sessions)))
        is_over = known.ended_ms is not None or known.vanished_ms is not None
        row = session_row(Run(uid, namespace, node=f"n{number}", rate=number + 1, settled=False)) | {
            **{
                name: getattr(known, name)
                for name in ("bound_ms", "started_ms", "ended_ms", "vanished_ms", "grace_ms")
            },
            "watermark_ms": known.watermark_ms if is_over else None,
            "admitted_in_budget": data.draw(st.booleans()),
            "reserves_until_ms": data.draw(st.none() | moments),
        }
        rows.append(row)
        nodes += [] if node is None else [{"name": f"n{number}", "watermark_ms": node}]
        if known.beat_ms is not None:
            beat = {"session_uid": uid, "boot": "b", "sequence": 1, "received_ms": 5_000}
            beats.append({**beat, "beat_ms": known.beat_ms})
        start, length = data.draw(spans)
        run = Run(uid, namespace, rate=number + 1, posted=((start, start + length, 1),))
        posted = [posting_row(run, 0, *run.posted[0])] if data.draw(st.booleans()) else []
        postings += posted
        session = Session(**{each.name: row[each.name] for each in fields(Session) if each.name in row})
        its = tuple(Posting(**{each.name: row[each.name] for each in fields(Posting)}) for row in posted)
        open_sessions[namespace].append(UnsettledSession(session, known, its))
    parts = {
        (namespace, start, start + length)
        for namespace in open_sessions
        for start, length in data.draw(st.lists(spans, min_size=1, max_size=2))
    }
    with wiped(books):
        with books.store.writing() as connection:
            for table, these in ((SESSIONS, rows), (NODES, nodes), (HEARTBEATS, beats), (POSTINGS, postings)):
                if these:
                    connection.execute(insert(table), these)
        with books.store.reading() as connection:
            found = {part: pending(connection, part, now_ms) for part in parts}

    for namespace, start, end in parts:
        figures = figures_of(Interval(start, end), open_sessions[namespace], now_ms)
        assert found[namespace, start, end] == figures.pending


# What rows say


def test_folding_sessions_changes_no_report(database_url: str, tmp_path: Path) -> None:
    began = MIDNIGHT - DAY + HOUR
    ledger = [
        Run(
            f"uid-{number}",
            namespace=f"team-{number % 2}",
            owner="Job/train",
            labels=(("team", str(number)),),
            rate=2500,
            started_ms=began,
            posted=days(began, began + (number + 1) * 7 * HOUR + number),
        )
        for number in range(4)
    ]
    questions = [
        f"from={BEGIN}&to={MIDNIGHT + 5 * HOUR}&{rest}"
        for rest in (
            *("group=namespace", "group=pod&use=true", "group=owner,label:team&by=day", "group=node&by=hour"),
            *("format=focus", "format=focus-csv&by=hour", "group=group,namespace&format=csv"),
        )
    ]

    def answers(books: Books) -> list[bytes]:
        return [books.get(f"/v1/usage?{question}").get_data() for question in questions]

    plain, folded = Books(database_url), Books(f"sqlite:///{tmp_path}/folded.db")
    plain.write(*ledger)
    folded.roll_up(*ledger)
    with folded.store.writing() as connection:  # sums of days stay when sessions are folded
        add = "INSERT INTO days VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"
        for run, (start, end, _) in [(each, posted) for each in ledger for posted in each.posted]:
            row = (run.namespace, start - start % DAY, run.rate * (end - start))
            connection.exec_driver_sql(add, row)

    assert answers(plain) == answers(folded)
    plain.close()
    folded.close()


def test_use_stands_beside_what_was_requested_and_says_by_whose_word(books: Books) -> None:
    for name in ("watched", "told", "dark"):
        books.write(Run(name, requested=500, started_ms=T0, posted=days(T0, T0 + 2 * HOUR)))
    books.used("watched", T0, "node", HOUR, 100 * HOUR)
    books.used("watched", T0, "tenant", HOUR, 999 * HOUR)
    books.used("told", T0, "tenant", HOUR // 2, 200 * HOUR // 2)

    rows = books.rows(f"from={T0}&to={T0 + 2 * HOUR}&group=pod&use=true")

    found = {row["pod"]: (row["requested"], row["measured"], row["used"], row["usedBy"]) for row in rows}
    assert found == {
        "watched": (1000 * HOUR, 500 * HOUR, 100 * HOUR, "node"),
        "told": (1000 * HOUR, 250 * HOUR, 100 * HOUR, "tenant"),
        "dark": (1000 * HOUR, 0, 0, None),
    }
    (all_of_it,) = books.rows(f"from={T0}&to={T0 + 2 * HOUR}&use=true")
    assert (all_of_it["used"], all_of_it["usedBy"]) == (200 * HOUR, "node and tenant")
    by_hour = books.rows(f"from={T0}&to={T0 + 2 * HOUR}&use=true&by=hour")
    assert [row["used"] for row in by_hour] == [200 * HOUR, 0]


@pytest.mark.parametrize("step", ["", "&by=hour", "&by=day"])
@pytest.mark.parametrize("group", ["pod", "owner", "namespace", "node", "model", "group", "label:team"])
def test_what_is_unused_is_the_same_however_it_is_grouped_and_cut(
    books: Books, group: str, step: str
) -> None:
    """Of a part of a card a pod may use more than its part; that makes up for no other pod or hour."""
    whole: Any = {"started_ms": T0, "posted": days(T0, T0 + 2 * HOUR), "labels": (("team", "x"),)}
    books.write(Run("half", requested=500, owner="Job/a", **whole), Run("one", owner="Job/a", **whole))
    books.roll_up(Run("gone", requested=200, owner="Job/b", posted=days(T0, T0 + HOUR)))
    books.entries(("team-a", "gpuHours: 1\ngroup: blue", 0), ("team-a", "gpuHours: 1\ngroup: red", T0 + HOUR))
    measured = {
        ("half", T0): (500, HOUR, 3900 * HOUR),
        ("half", T0 + HOUR): (500, HOUR // 2, 100 * HOUR),
        ("one", T0): (1000, HOUR, 0),
        ("gone", T0): (200, HOUR, 50 * HOUR),
    }
    for (uid, hour_ms), (_, covered_ms, used) in measured.items():
        books.used(uid, hour_ms, "node", covered_ms, used)
        books.used(uid, hour_ms, "tenant", HOUR, 0)

    rows = books.rows(f"from={T0}&to={T0 + 2 * HOUR}&use=true&group={group}{step}")

    unused = sum(max(0, covered * part - used) for part, covered, used in measured.values())
    assert sum(row["unused"] for row in rows) == unused == (150 + 1000 + 150) * HOUR
    assert sum(row["used"] for row in rows) == 4050 * HOUR
    table = books.get(
        f"/v1/usage?from={T0}&to={T0 + 2 * HOUR}&use=true&group={group}{step}", Accept=TABLE
    ).get_json()
    at = [column["key"] for column in table["columnDefinitions"]].index("busy")
    assert all(int(row["cells"][at].rstrip("%") or 0) <= 100 for row in table["rows"])


def test_use_of_folded_sessions_is_still_reported(books: Books) -> None:
    books.roll_up(Run("gone", requested=500, posted=days(T0, T0 + HOUR)))
    books.used("gone", T0, "node", HOUR, 100 * HOUR)

    (row,) = books.rows(f"from={T0}&to={T0 + HOUR}&group=pod&use=true")

    assert (row["requested"], row["used"], row["usedBy"]) == (500 * HOUR, 100 * HOUR, "node")


def test_reports_say_of_a_time_whose_use_is_not_kept_that_nothing_is_known(books: Books) -> None:
    """An hour that began before the retention is deleted, so it is unknown to its end."""
    books.write(Run("watched", requested=500, started_ms=T0, posted=days(T0, T0 + 2 * HOUR)))
    books.used("watched", T0 + HOUR, "node", HOUR, 100 * HOUR)
    retain_ms = books.clock() - T0 - 1
    client = app_of(replace(books.services, retain_use_ms=retain_ms), SharingFlask).test_client()

    def ask(query: str, **headers: str) -> Any:
        path = f"/v1/usage?from={T0}&to={T0 + 2 * HOUR}&use=true&by=hour{query}"
        answer = client.get(path, headers={"Authorization": f"Bearer {ADMIN}", **headers})
        assert answer.status_code == 200, answer.data
        return answer

    rows = ask("").get_json()["rows"]
    assert [
        [row[name] for name in ("requested", "measured", "used", "unused", "usedBy")] for row in rows
    ] == [
        [500 * HOUR, None, None, None, None],
        [500 * HOUR, 500 * HOUR, 100 * HOUR, 400 * HOUR, "node"],
    ]
    first, second = csv.DictReader(io.StringIO(ask("&format=csv").text))
    names = ("measured", "used", "unused", "usedBy", "measuredGpuHours", "usedGpuHours")
    assert {first[name] for name in names} == {""}
    assert (second["measuredGpuHours"], first["requestedGpuHours"]) == ("0.5", "0.5")
    table = ask("", Accept=TABLE).get_json()
    at = [column["key"] for column in table["columnDefinitions"]].index("busy")
    assert [row["cells"][at] for row in table["rows"]] == ["", "20%"]
    assert table["notes"] == ["Use that was measured longer ago than --retain-use is not kept."]


def test_a_group_is_charged_for_the_time_that_a_namespace_was_in_it(books: Books) -> None:
    books.entries(
        ("team-a", "gpuHours: 1\ngroup: blue", 0),
        ("team-b", "gpuHours: 1\ngroup: blue", 0),
        ("team-a", "gpuHours: 1\ngroup: green", T0 + HOUR),
    )
    for namespace in ("team-a", "team-b", "alone"):
        books.write(Run(namespace, namespace=namespace, posted=days(T0, T0 + 3 * HOUR)))
    span = f"from={T0}&to={T0 + 3 * HOUR}"

    found = {row["group"]: row["amount"] for row in books.rows(f"{span}&group=group")}

    assert found == {"blue": GPU * 4 * HOUR, "green": GPU * 2 * HOUR, "": GPU * 3 * HOUR}
    pairs = [(row["namespace"], row["group"]) for row in books.rows(f"{span}&group=namespace,group")]
    assert pairs == [("alone", ""), ("team-a", "blue"), ("team-a", "green"), ("team-b", "blue")]


def test_a_report_of_one_group_is_its_part_of_the_report_of_all(books: Books) -> None:
    books.entries(
        *((name, "gpuHours: 1\ngroup: blue", 0) for name in ("team-a", "team-b")),
        ("team-a", "gpuHours: 1\ngroup: green", T0 + HOUR),
        ("team-a", "gpuHours: 2\ngroup: blue", T0 + 2 * HOUR),
    )
    for namespace in ("team-a", "team-b", "alone"):
        books.write(Run(namespace, namespace=namespace, posted=days(T0, T0 + 3 * HOUR)))
        books.write(Run(f"open-{namespace}", namespace=namespace, heard_ms=T0 + 3 * HOUR, settled=False))
    span = f"from={T0 - DAY}&to={T0 + DAY}"

    for query in (
        "group=group,pod&use=true",
        "group=group&by=hour",
        "group=group",
        "group=group,namespace&by=day",
    ):
        every = books.rows(f"{span}&{query}")
        for group in ("blue", "green"):
            theirs = [row for row in every if row["group"] == group]
            assert books.rows(f"{span}&{query}&namespace=_group.{group}") == theirs
            first = books.rows(f"{span}&{query}&namespace=_group.{group}&limit=1")
            assert first == theirs[:1] != []
    amounts = {
        row["namespace"]: row["amount"]
        for row in books.rows(f"{span}&group=namespace&namespace=_group.blue&sort=-gpuHours")
    }
    assert amounts == {"team-a": GPU * 4 * HOUR, "team-b": GPU * 6 * HOUR}
    assert books.rows(f"{span}&namespace=_group.none") == []


def test_a_report_of_a_group_needs_the_right_on_its_name(books: Books) -> None:
    lead = token("lead")
    books.reviews.tokens[lead] = user_status("lead")
    books.reviews.denied |= {("lead", "get", "usage", where) for where in ("", "team-a", "_group.green")}

    codes = [
        books.get(f"/v1/usage?namespace={name}", lead).status_code
        for name in ("_group.blue", "_group.green", "team-a", "_blue")
    ]

    assert codes == [200, 403, 403, 400]


# Forms


def sheet(answer: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer)))


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@x", "\tx", "\rx", "\nx"])
def test_what_a_spreadsheet_would_calculate_is_text_in_every_column(books: Books, text: str) -> None:
    wild = Run(
        "uid",
        owner=text,
        node="n1",
        models=text,
        name=text,
        labels=(("team", text),),
        posted=((T0, T0 + 1, 1),),
    )
    books.write(wild)

    plain = books.get(f"/v1/usage?from={T0}&to={T0 + 1}&group=pod,label:team&format=csv").get_data(
        as_text=True
    )
    focus = books.get(f"/v1/usage?from={T0}&to={T0 + 1_000}&format=focus-csv").get_data(as_text=True)

    (row,) = sheet(plain)
    assert {row[name] for name in ("pod", "owner", "models", "label:team")} == {f"'{text}"}
    for cell in (*row.values(), *sheet(focus)[0].values()):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")), cell


def test_a_label_of_every_legal_form_is_a_column(books: Books) -> None:
    names = ("a", "A.b_c-D9", "example.com/x", f"{'d' * 63}.{'e' * 63}/{'x' * 63}")
    books.write(
        Run("uid", labels=tuple((name, f"v{at}") for at, name in enumerate(names)), posted=((T0, T0 + 1, 1),))
    )
    span = f"from={T0}&to={T0 + 1}"

    for at, name in enumerate(names):
        (row,) = books.rows(f"{span}&group=label:{name}")
        assert row["labels"] == {name: f"v{at}"}


def test_a_label_that_no_pod_can_have_is_refused(books: Books) -> None:
    for name in ("", "a b", 'a"', "a'--", "$.a", "a/b/c", "-a", "a%00"):
        answer = books.get(f"/v1/usage?group=label:{name}")

        assert (answer.status_code, answer.get_json()["field"]) == (400, "group"), name


FOCUS_MANDATORY = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost"),
    *("PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
}
# FOCUS 1.2 allows no null there in a row of usage, whatever it costs
FOCUS_OF_USAGE = FOCUS_MANDATORY - {"ChargeClass"} | {
    *("ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice", "PricingCategory"),
    *("PricingCurrency", "ServiceSubcategory", "SkuId", "SkuPriceId"),
}


def test_focus_rows_have_the_price_of_their_time_and_exact_costs(books: Books) -> None:
    books.entries(
        ("_settings", "timeZone: Europe/Berlin\ncurrency: EUR", 0),
        ("team-a", "gpuHours: 9\ngroup: blue\nprice: 2.5", 0),
        ("team-a", "gpuHours: 9\ngroup: blue\nprice: 0.1", T0 + HOUR),
    )
    run = Run("uid", name="p", labels=(("team", "=x"),), posted=days(T0, T0 + 2 * HOUR))
    books.write(run, Run("free", namespace="free", posted=days(T0, T0 + 1)))

    answer = books.get(f"/v1/usage?from={T0}&to={T0 + 2 * HOUR}&format=focus")
    rows = json.loads(answer.get_data(), parse_float=Decimal)["rows"]

    (free,) = (row for row in rows if row["SubAccountId"] == "free")
    paid = [row for row in rows if row is not free]
    assert free.keys() >= FOCUS_MANDATORY
    assert [name for name in free if not name[0].isupper() and not name.startswith("x_")] == []
    assert {row["BilledCost"] for row in paid} == {Decimal("2.5"), Decimal("0.1")}
    assert {(row["ListUnitPrice"], row["PricingQuantity"]) for row in paid} == {
        (Decimal("2.5"), 1),
        (Decimal("0.1"), 1),
    }
    assert {(row["SubAccountId"], row["x_Group"], row["BillingCurrency"]) for row in paid} == {
        ("team-a", "blue", "EUR")
    }
    assert paid[0]["Tags"] == {"team": "=x"}
    assert (paid[0]["ChargePeriodStart"], paid[0]["ChargePeriodEnd"]) == (iso(T0), iso(T0 + 2 * HOUR))
    assert paid[0]["BillingPeriodStart"] == "2026-10-31T23:00:00Z"
    assert (free["BilledCost"], free["PricingCategory"], free["x_Amount"]) == (0, "Standard", GPU)
    assert (free["ListUnitPrice"], free["ContractedUnitPrice"], free["PricingCurrency"]) == (0, 0, "EUR")
    assert [name for name in FOCUS_OF_USAGE if free[name] is None] == []


def test_a_plain_sheet_has_costs_hours_and_times_that_a_spreadsheet_reads(books: Books) -> None:
    books.entries(
        ("_settings", "currency: EUR", 0),
        ("team-a", "gpuHours: 9\nprice: 2.5", 0),
        ("team-a", "gpuHours: 9\nprice: 0.1", T0 + HOUR),
    )
    books.write(
        Run("uid", posted=days(T0, T0 + 2 * HOUR)), Run("free", namespace="free", posted=days(T0, T0 + HOUR))
    )

    rows = sheet(
        books.get(f"/v1/usage?from={T0}&to={T0 + 2 * HOUR}&format=csv&use=true").get_data(as_text=True)
    )

    named = ("namespace", "from", "to", "gpuHours", "price", "currency", "cost", "requestedGpuHours")
    times = (iso(T0), iso(T0 + 2 * HOUR))
    assert [tuple(row[name] for name in named) for row in rows] == [
        ("free", *times, "1", "", "EUR", "", "1"),
        ("team-a", *times, "1", "0.1", "EUR", "0.1", "1"),
        ("team-a", *times, "1", "2.5", "EUR", "2.5", "1"),
    ]


def test_a_report_takes_days_and_months_of_its_time_zone(books: Books) -> None:
    """Berlin's November begins at 23:00 UTC, and its October is an hour longer."""
    november = at_ms("2026-10-31T23:00:00Z")

    def span(query: str) -> tuple[int, int]:
        report = books.get(f"/v1/usage?timeZone=Europe/Berlin&{query}").get_json()
        return report["from"], report["to"]

    assert span("from=2026-11-01&to=2026-11-02") == (november, november + DAY)
    assert span("month=2026-10") == (november - 31 * DAY - HOUR, november)
    assert span(f"from=2026-11-01&to={november + 1}") == (november, november + 1)
    for query, field in {
        "month=2026-10&from=2026-10-02": "month",
        "month=2026-13": "month",
        "month=2026-1": "month",
        "from=2026-02-30": "from",
        "from=2026-11-01&to=2026-11-01": "to",
    }.items():
        answer = books.get(f"/v1/usage?{query}")
        assert (answer.status_code, answer.get_json()["field"]) == (400, field), query


def test_a_report_is_ordered_by_its_amounts_where_that_is_requested(books: Books) -> None:
    lengths = {"team-a": 2, "team-b": 3, "team-c": 1}
    books.write(*(Run(name, namespace=name, posted=days(T0, T0 + n * HOUR)) for name, n in lengths.items()))
    path = f"/v1/usage?from={T0}&to={T0 + DAY}"

    def order(query: str) -> list[str]:
        return [row["namespace"] for row in books.get(f"{path}&{query}").get_json()["rows"]]

    assert order("sort=-gpuHours") == ["team-b", "team-a", "team-c"]
    assert order("sort=gpuHours&group=pod") == ["team-c", "team-a", "team-b"]
    assert order("sort=-gpuHours&group=pod&limit=2") == ["team-b", "team-a"]
    assert books.get(f"{path}&sort=-gpuHours&limit=2").get_json()["next"] is None
    assert books.get(f"{path}&sort=-gpuHours&by=day").get_json()["field"] == "sort"
    assert books.get(f"{path}&sort=-gpuHours&format=focus").get_json()["field"] == "sort"


def test_focus_rows_of_one_sku_keep_its_ids_and_their_times_are_whole_seconds(books: Books) -> None:
    books.entries(("team-a", "gpuHours: 9\nprice: 2.5", 0), ("team-a", "gpuHours: 9\nprice: 3", T0 + HOUR))
    books.write(
        Run("paid", posted=days(T0, T0 + 2 * HOUR)), Run("free", namespace="b", posted=days(T0, T0 + HOUR))
    )
    path = f"/v1/usage?from={T0 + 10_250}&to={T0 + 2 * HOUR - 1}&format=focus"

    answer = books.get(path).get_json()

    assert (answer["from"], answer["to"]) == (T0 + 10_000, T0 + 2 * HOUR - 1_000)
    assert len(answer["rows"]) == 3
    for row in answer["rows"]:
        assert row["SkuId"] == row["SkuPriceId"] == "gpu/A100"
        assert (row["PricingUnit"], row["PricingQuantity"]) == ("GPU-Hours", row["ConsumedQuantity"])
        times = (row["ChargePeriodStart"], row["ChargePeriodEnd"], row["BillingPeriodStart"])
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", each) for each in times)


def test_focus_rows_as_a_sheet_say_the_same(books: Books) -> None:
    books.entries(("team-a", "gpuHours: 9\nprice: 2.5", 0))
    books.write(Run("uid", posted=days(T0, T0 + HOUR)))
    query = f"/v1/usage?from={T0}&to={T0 + HOUR}&format=focus"

    (row,) = sheet(books.get(f"{query}-csv").get_data(as_text=True))

    (same,) = books.get(query).get_json()["rows"]
    assert row.keys() == same.keys()
    assert (row["BilledCost"], row["Tags"], row["ChargeClass"]) == ("2.5", "{}", "")


@pytest.mark.parametrize("query", ["by=hour", "by=hour&namespace=team-a&group=pod&use=true", "by=day"])
def test_a_report_costs_by_the_steps_that_have_something(books: Books, query: str) -> None:
    """Whatever it is that they have: charges posted, folded or due, long ones, or used ones."""
    past = T0 - 400 * DAY
    books.write(
        Run("first", started_ms=past, posted=days(past, past + 2 * HOUR)),
        Run("open", started_ms=T0, heard_ms=T0 + 90 * MINUTE, settled=False),
        Run("other", namespace="b", posted=days(past + 30 * DAY, past + 30 * DAY + HOUR)),
        Run("used", rate=1, posted=days(T0 - 50 * DAY, T0 - 50 * DAY + HOUR)),
        Run("long", started_ms=past + 90 * DAY, posted=days(past + 90 * DAY, past + 91 * DAY + 5 * HOUR)),
    )
    books.used("used", T0 - 50 * DAY - T0 % HOUR, "node", HOUR, 7)
    books.used("used", T0 - 20 * DAY - T0 % HOUR, "node", HOUR, 9)  # without a charge: it has no row
    books.roll_up(Run("old", posted=days(past + 10 * DAY, past + 10 * DAY + MINUTE)))
    inside = past + 90 * DAY + 2 * HOUR
    books.write(Run("inside the long one", posted=days(inside, inside + HOUR)))
    statements = Statements(books.store.engine)

    rows = books.rows(f"from={past}&to={T0 + DAY}&{query}")

    statements.end()
    steps = {row["from"] for row in rows}
    assert statements.all < 10 * len(steps) + 20
    of_all = {"by=hour": "group=pod", "by=day": "by=all"}.get(query, query.replace("by=hour", "by=all"))
    whole = f"from={past}&to={T0 + DAY}&{of_all}"
    assert sum(row["amount"] for row in rows) == sum(row["amount"] for row in books.rows(whole))
    ends = {row["from"]: row["to"] for row in rows}
    apart = [books.rows(f"from={start}&to={end}&{query}") for start, end in ends.items()]
    assert [row for each in apart for row in each] == rows
    if "pod" in query:
        assert {row["pod"] for row in rows} == {"first", "long", "inside the long one", "open", "used", "old"}
        assert [row["used"] for row in rows if row["used"]] == [7]


# Large answers


@pytest.mark.parametrize("query", ["group=pod", "group=namespace,node&by=hour", "format=focus&by=hour"])
def test_pages_together_are_the_whole(books: Books, query: str) -> None:
    books.write(*(Run(f"u{n:02}", namespace=f"t{n % 3}", posted=days(T0, T0 + 3 * HOUR)) for n in range(7)))
    path = f"/v1/usage?from={T0}&to={T0 + 3 * HOUR}&{query}"
    whole = books.get(path).get_json()

    pages, following = [], f"{path}&limit=4"
    while following:
        answer = books.get(following)
        pages.append(answer.get_json())
        link = answer.headers.get("Link", "")
        assert bool(link) == bool(pages[-1]["next"])
        following = link.removeprefix("<").partition(">")[0]

    assert [len(page["rows"]) for page in pages[:-1]] == [4] * (len(pages) - 1)
    assert [row for page in pages for row in page["rows"]] == whole["rows"]
    if "total" in whole:
        assert sum(page["total"]["amount"] for page in pages) == whole["total"]["amount"]


@pytest.mark.parametrize("query", ["group=pod&by=day", "group=owner&use=true", "format=focus"])
def test_pages_of_many_namespaces_are_the_whole_too(books: Books, query: str) -> None:
    start = MIDNIGHT - HOUR
    runs = [
        Run(f"u{n:02}", namespace=f"t{n % 17:02}", posted=days(start, start + 2 * HOUR)) for n in range(40)
    ]
    books.write(*runs)
    books.used("u03", start, "node", HOUR, 100 * HOUR)
    path = f"/v1/usage?from={start}&to={start + 2 * HOUR}&{query}"
    whole = books.get(path).get_json()["rows"]

    pages = [books.get(f"{path}&limit=7").get_json()]
    while pages[-1]["next"]:
        pages.append(books.get(f"{path}&limit=7&after={pages[-1]['next']}").get_json())

    assert [row for page in pages for row in page["rows"]] == whole


def test_few_of_many_charges_are_found_as_all_of_them_are(books: Books) -> None:
    """Few of a table's rows are looked up; where a span has most of them, it is passed through."""
    few = [Run(f"few-{n}", started_ms=T0, posted=days(T0, T0 + HOUR)) for n in range(2)]
    books.write(*few, *(Run(f"u{n}", posted=days(T0 - 9 * DAY, T0 - 9 * DAY + HOUR)) for n in range(40)))
    for run in few:
        books.used(run.uid, T0, "node", HOUR, 100 * HOUR)
    for n in range(40):
        books.used(f"u{n}", T0 - 9 * DAY, "node", HOUR, 10 * HOUR)

    def sums(start: int, end: int) -> list[tuple[int, int, int]]:
        rows = books.rows(f"from={start}&to={end}&group=node&use=true")
        return [(row["amount"], row["requested"], row["used"]) for row in rows]

    assert sums(T0, T0 + HOUR) == [(2 * GPU * HOUR, 2 * GPU * HOUR, 200 * HOUR)]
    assert sums(T0 - 10 * DAY, T0 + HOUR) == [(42 * GPU * HOUR, 42 * GPU * HOUR, 600 * HOUR)]
    assert sums(T0 - 10 * DAY, T0) == [(40 * GPU * HOUR, 40 * GPU * HOUR, 400 * HOUR)]


def test_the_place_of_a_focus_page_is_short_however_many_labels_there_are(books: Books) -> None:
    labels = tuple((f"label-{n}", "x" * 63) for n in range(60))
    owner = "Deployment/" + "o" * 250
    books.write(*(Run(f"u{n}", labels=labels, owner=owner, posted=days(T0, T0 + HOUR)) for n in range(3)))
    path = f"/v1/usage?from={T0}&to={T0 + HOUR}&format=focus"

    first = books.get(f"{path}&limit=2").get_json()
    second = books.get(f"{path}&limit=2&after={first['next']}").get_json()

    assert len(first["next"]) < 500
    assert [row["ResourceId"] for row in (*first["rows"], *second["rows"])] == ["u0", "u1", "u2"]
    assert second["next"] is None


@pytest.mark.parametrize("query", ["group=pod&by=day", "format=focus"])
def test_pages_without_times_are_all_of_the_span_of_the_first(books: Books, query: str) -> None:
    books.write(*(Run(f"u{n}", posted=days(T0, T0 + HOUR)) for n in range(4)))
    books.clock.at_ms = at_ms("2026-11-30T23:59:59.500Z")
    first = books.get(f"/v1/usage?{query}&limit=3").get_json()
    books.clock.at_ms = at_ms("2026-12-01T00:00:01Z")

    second = books.get(f"/v1/usage?{query}&limit=3&after={first['next']}").get_json()

    assert (len(first["rows"]), len(second["rows"]), second["next"]) == (3, 1, None)
    assert (second["from"], second["to"]) == (first["from"], first["to"])
    other = books.get(f"/v1/usage?{query}&limit=3&after={first['next']}&from={T0}")
    assert (other.status_code, other.get_json()["field"]) == (400, "after")


def test_a_span_that_has_not_begun_names_from(books: Books) -> None:
    answer = books.get(f"/v1/usage?from={books.clock() + HOUR}")

    assert (answer.status_code, answer.get_json()["field"]) == (400, "from")


def test_a_cursor_that_was_never_given_out_is_refused(books: Books) -> None:
    books.write(Run("u", posted=days(T0, T0 + 1)))
    for after in (
        "x",
        "W10",
        "WyJhIl0",
        "WzEsMl0",
        "W3RydWUsICJhIl0",
        "WzEsICJcdTAwMDAiXQ",
        "%00",
        "A" * 5000,
    ):
        answer = books.get(f"/v1/usage?after={after}&limit=2")
        assert (answer.status_code, answer.get_json()["field"]) == (400, "after"), after


def test_a_page_is_not_sent_twice_to_who_has_it(books: Books) -> None:
    books.write(Run("u", posted=days(T0, T0 + 1)))
    path = f"/v1/usage?from={T0}&to={T0 + 1}&limit=5"
    tag = books.get(path).headers["ETag"]

    again = books.get(path, **{"If-None-Match": tag})
    assert (again.status_code, again.get_data()) == (304, b"")

    books.write(Run("v", posted=days(T0, T0 + 1)))
    assert books.get(path, **{"If-None-Match": tag}).status_code == 200


def test_a_page_that_may_be_old_is_read_once_for_each_question_and_right(books: Books) -> None:
    reader = token("reader")
    books.reviews.tokens[reader] = user_status("reader")
    books.reviews.denied |= {("reader", "get", "usage", "")}
    books.write(Run("u", posted=days(T0, T0 + HOUR)))
    path, old = f"/v1/usage?from={T0}&to={T0 + HOUR}&limit=5", {"Cache-Control": "max-age=30"}
    first = books.get(path, **old).get_data()
    books.write(Run("v", posted=days(T0, T0 + HOUR)))

    assert books.get(path, **old).get_data() == first
    assert books.get(path.replace("limit=5", "limit=6"), **old).get_data() != first
    assert books.get(path).get_data() != first
    assert books.get(path, reader, **old).status_code == 403


MANY = examples(20_000, soak=100_000)  # lines of a report


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The URL of the database of a kind that has ``MANY`` sessions of a second each. Tests share it, for they
    only read it: its rows are counted at the end."""
    made: dict[str, str] = {}
    with ExitStack() as stack:

        def url_of(kind: str) -> str:
            if kind not in made:
                sqlite = f"sqlite:///{tmp_path_factory.mktemp('crowded')}/ledger.db"
                made[kind] = sqlite if kind == "sqlite" else stack.enter_context(fresh_postgresql())
                _crowd(made[kind])
            return made[kind]

        yield url_of
        for url in made.values():
            with closing(Books(url)) as books, books.store.reading() as connection:
                for table in (SESSIONS, POSTINGS):
                    assert connection.scalar(select(func.count()).select_from(table)) == MANY


def _crowd(url: str) -> None:
    session, posting = session_row(Run("u")), posting_row(Run("u"), 0, T0, T0 + 1_000, 1)
    with closing(Books(url)) as books, books.store.writing() as connection:
        for table, row, uid in ((SESSIONS, session, "uid"), (POSTINGS, posting, "session_uid")):
            rest = {name: value for name, value in row.items() if name not in (uid, "namespace")}
            same: list[Any] = [bindparam(name, value) for name, value in rest.items()]
            n = select(literal(1_000_000).label("n")).cte("n", recursive=True)
            n = n.union_all(select(n.c.n + 1).where(n.c.n < 999_999 + MANY))
            number = cast(n.c.n, Text)
            rows = select("uid-" + number, "t" + func.substr(number, 5), *same)  # a thousand namespaces
            names = [uid, "namespace", *rest]
            connection.execute(insert(table).from_select(names, rows))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.untraced)])
def many(request: pytest.FixtureRequest, crowded: Callable[[str], str]) -> Iterator[Books]:
    """The crowded ledger, with connections and an API of the test's own."""
    with closing(Books(crowded(request.param))) as books:
        yield books


@pytest.mark.untraced
def test_a_report_of_many_lines_is_sent_while_it_is_read(many: Books) -> None:
    asked = f"/v1/usage?from={T0}&to={T0 + DAY}&group=pod"
    assert many.get(f"{asked}&namespace=t000").data  # what the first report loads stays
    answer = many.get(asked)
    lines = size = 0

    tracemalloc.start()
    for piece in answer.response:
        size += len(piece)
        lines += piece.count(b"uid-") if isinstance(piece, bytes) else 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    answer.close()

    assert (lines, answer.headers.get("Content-Length")) == (MANY, None)
    assert size > 50 * MANY
    assert peak < size * 3 / 4  # the whole would be as large as itself, and a driver has buffers of its own


def test_who_goes_away_in_the_middle_of_a_report_keeps_nothing_open(many: Books) -> None:
    for _ in range(SEATS + 1):
        answer = many.get(f"/v1/usage?from={T0}&to={T0 + DAY}&group=pod")
        next(iter(answer.response))
        answer.close()

    assert many.get(f"/v1/usage?from={T0}&to={T0 + DAY}").status_code == 200
    assert many.store.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.mark.untraced
def test_of_too_many_whole_reports_at_once_one_is_refused_and_pages_are_not(many: Books) -> None:
    path = f"/v1/usage?from={T0}&to={T0 + DAY}&group=pod"
    many.client = app_of(replace(many.services, report_streams=Seats(wait_s=0.1))).test_client()
    reading = [many.get(path) for _ in range(3)]

    refused = many.get(path)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert many.get(f"{path}&limit=1").status_code == 200

    for each in reading:
        each.close()
    again = many.get(path)
    assert again.status_code == 200
    again.close()


@pytest.mark.untraced
@pytest.mark.parametrize("many", ["postgresql"], indirect=True)
def test_the_database_waits_for_who_takes_a_whole_report_slowly(many: Books) -> None:
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    engine = many.store.engine
    engine.dispose()
    event.listen(engine, "connect", _with_little_patience)
    answer = many.get(f"/v1/usage?from={T0}&to={T0 + DAY}&group=pod")
    pieces = iter(answer.response)
    next(pieces)

    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.exec_driver_sql(idle).scalar_one() == 1
        connection.exec_driver_sql("SELECT pg_sleep(0.5)")  # the server's own clock: five times its patience

    assert sum(piece.count(b"uid-") for piece in pieces if isinstance(piece, bytes)) > MANY * 9 // 10
    answer.close()


def _with_little_patience(connection: Any, _record: object) -> None:
    connection.autocommit = True
    connection.execute("SET idle_in_transaction_session_timeout = 100")
    connection.autocommit = False


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_several_runs_of_a_pods_sidecar_the_latest_heartbeat_counts(books: Books, first: str) -> None:
    """In reports, budgets and the pod's own story."""
    run = Run("two", "team-a", started_ms=T0 - 2 * HOUR, heard_ms=T0 - HOUR, settled=False)
    beat = {"session_uid": "two", "sequence": 1, "received_ms": T0}
    books.write(run)
    with books.store.writing() as connection:
        connection.execute(delete(HEARTBEATS))
        for boot, beat_ms in ((first, T0 - HOUR), ("ab".replace(first, ""), T0 - HOUR // 2)):
            connection.execute(insert(HEARTBEATS), [{**beat, "boot": boot, "beat_ms": beat_ms}])

    usage = books.get(f"/v1/usage?namespace=team-a&group=pod&from={T0 - DAY}&to={T0}").json
    budget = books.get("/v1/budgets/team-a").json
    story = books.get("/v1/explain/team-a/two").json

    assert usage is not None
    assert budget is not None
    assert story is not None
    due = run.rate * (HOUR + HOUR // 2)
    assert [each["pending"] for each in usage["rows"]] == [due]
    assert [each["amount"] for each in story["charges"]] == [due]
    assert budget["pending"] == due


@pytest.mark.parametrize("budgets", ["UTC", "Europe/Budapest"])
@pytest.mark.parametrize(
    "zone",
    [
        "Pacific/Auckland",
        "Europe/Budapest",
        "America/Los_Angeles",
        "Australia/Lord_Howe",
        "Pacific/Kiritimati",
    ],
)
def test_steps_in_a_table_are_called_by_the_zone_that_cut_them(books: Books, zone: str, budgets: str) -> None:
    """Whatever the budgets' own is: names and lengths are counted here by half hours."""
    begin, end = at_ms("2026-10-23T00:00:00Z"), at_ms("2026-11-04T00:00:00Z")
    lengths: dict[str, int] = defaultdict(int)
    for at in range(begin, end, HOUR // 2):
        lengths[f"{datetime.fromtimestamp(at // 1000, ZoneInfo(zone)):%Y-%m-%d}"] += 1
    books.entries(("_settings", f"timeZone: {budgets}", 0))
    books.write(Run("all", started_ms=begin, posted=days(begin, end)))

    query = f"by=day&timeZone={zone}&from={begin}&to={end}"
    table = books.get(f"/v1/usage?{query}", Accept=TABLE).get_json()

    found = [[row["cells"][0], row["cells"][-1]] for row in table["rows"]]
    assert found == [[day, f"{halves / 2:.2f}"] for day, halves in sorted(lengths.items())]
