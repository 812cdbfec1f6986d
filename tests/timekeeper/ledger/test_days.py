"""Sums of a span, made of whole days and of the rows at its edges, are the sums of all rows, on both
databases."""

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from sqlalchemy import delete, insert, text, update

from tests.timekeeper.rows import GOOD, SESSION
from tests.timekeeper.worlds import DAY, HOUR, Json
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.core.ledger.metering import FOREVER_MS, Interval
from timekeeper.store import ledger as reading
from timekeeper.store.engine.engine import Store, open_store
from timekeeper.store.engine.schema import FOLDED, POSTINGS, SESSIONS
from timekeeper.store.engine.upgrade import upgrade

BOTH_DATABASES = "sums over folded days are SQL"
FIRST = 20_000 * DAY
TEAMS = ("team-a", "team-b")


@dataclass
class Writable:
    """A store, and all that was ever posted to it, folded since or not."""

    store: Store
    postings: list[Posting]

    def plain(self, namespace: str, span: Interval) -> int:
        """The sum of the postings, one by one."""
        return amount_within((each for each in self.postings if each.namespace == namespace), span)


def session(uid: str, namespace: str) -> Json:
    times = {"bound_ms": 0, "opened_ms": 0, "started_ms": 1, "ended_ms": FOREVER_MS, "settled_ms": FOREVER_MS}
    return {**SESSION, "uid": uid, "namespace": namespace, "name": uid, "rate_milli": 7, **times}


def random_postings(chance: random.Random, uid: str, namespace: str) -> list[Posting]:
    """Some within a day, some that touch midnight; settled and taken back."""
    found, start = [], FIRST + chance.randrange(20 * DAY)
    for sequence in range(chance.randrange(1, 6)):
        start += chance.choice((0, 1, HOUR, DAY - start % DAY))
        midnight = start - start % DAY + DAY
        end = min(start + chance.choice((1, HOUR, DAY)), midnight)
        kind = "settled" if sequence % 3 < 2 else "correction"
        rate = 7 if kind == "settled" else -7
        found.append(Posting(uid, sequence, namespace, start, end, rate, kind, "", 0))
        start = end
    return found


@pytest.fixture
def ledger(database_url: str) -> Iterable[Writable]:
    chance = random.Random(7)
    store = open_store(database_url)
    upgrade(store)
    built = Writable(store, [])
    with store.writing() as connection:
        for number in range(60):
            uid, namespace = f"u{number}", TEAMS[number % 2]
            mine = random_postings(chance, uid, namespace)
            connection.execute(insert(SESSIONS), [session(uid, namespace)])
            connection.execute(insert(POSTINGS), [{**asdict(each), "amount": each.amount} for each in mine])
            built.postings += mine
            if number % 4 == 0 and all(each.rate_milli > 0 for each in mine):
                connection.execute(update(SESSIONS).where(SESSIONS.c.uid == uid).values(folded_ms=1))
                connection.execute(insert(FOLDED), [folded(each) for each in mine])
                connection.execute(delete(POSTINGS).where(POSTINGS.c.session_uid == uid))
    yield built
    store.close()


def folded(posting: Posting) -> Json:
    what = {"session_uid": posting.session_uid, "namespace": posting.namespace, "name": "", "owner": ""}
    kept = {"from_ms": posting.from_ms, "to_ms": posting.to_ms, "rate_milli": posting.rate_milli}
    more = {**GOOD["folded"], "requested_milli": 0, "requested_mib": 0}
    return {**more, **what, **kept, "amount": posting.amount, "created_ms": 0}


def test_a_sum_by_days_is_the_sum_of_all_rows(ledger: Writable) -> None:
    chance = random.Random(11)
    whole = [Interval(0, FOREVER_MS), Interval(FIRST, FIRST + DAY), Interval(FIRST + 1, FIRST + DAY - 1)]
    for _ in range(150):
        start = FIRST + chance.randrange(25 * DAY) // chance.choice((1, HOUR, DAY)) * chance.choice((1, HOUR))
        whole.append(Interval(start, start + chance.choice((1, HOUR, 5 * HOUR, DAY, 3 * DAY, 10 * DAY + 7))))
    with ledger.store.reading() as connection:
        for span in whole:
            keys = [(name, span.start_ms, span.end_ms) for name in (*TEAMS, "nobody")]
            sums = {key: ledger.plain(key[0], span) for key in keys}
            assert reading.posted_of(connection, keys) == sums


def test_sums_of_many_namespaces_are_read_together(ledger: Writable) -> None:
    span = Interval(FIRST + HOUR, FIRST + 9 * DAY + HOUR)
    keys = [(name, span.start_ms, span.end_ms) for name in (*TEAMS, *(f"other-{n}" for n in range(40)))]
    with ledger.store.reading() as connection:
        assert reading.posted_of(connection, keys) == {key: ledger.plain(key[0], span) for key in keys}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_sum_by_days_scans_no_table(ledger: Writable) -> None:
    with ledger.store.reading() as connection:
        driver: Any = connection.connection.driver_connection
        sent: list[str] = []
        driver.set_trace_callback(sent.append)
        reading.posted_of(connection, [("team-a", FIRST + 1, FIRST + 3 * DAY + 1)])
        driver.set_trace_callback(None)
        plan = connection.execute(text(f"EXPLAIN QUERY PLAN {sent[-1]}")).all()
    assert not any(row[-1].startswith("SCAN postings") for row in plan), plan
