"""What each namespace strands over time, counted from the posts of the live map and kept by the UTC hour.

The law: between two posts that are at most `FRESH_MS` apart each namespace strands what the map shows after
the earlier one. So an hour has, of each namespace, the exact sum of milli-GPU x milliseconds of such
intervals, cut at the hour. A longer interval is unknown: nothing of it counts, and `MAP_HOURS` has how much
of each hour is known. The map shows a node until it is gone, or for 15 minutes after its last post. Times are
those at which posts came, by the timekeeper's clock; a post that is not later than the one before adds
nothing. A new post counts first what the map showed before it, in one transaction with the map, so a killed
timekeeper counts nothing twice and loses nothing.

A leader names its term in its posts. Once another term has posted, an earlier one's posts are refused: what
an old leader sends late changes neither the map nor these sums.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson
from sqlalchemy import delete, select, text

from timekeeper.core.ledger.metering import Interval
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import HOUR_MS, MAP_POSTS, STRANDED

FRESH_MS = 60_000  # the extender posts twice as often, also when nothing changes
_MOST_TERMS = 50  # earlier ones that are remembered
_MOST_MILLI = 1_000_000_000  # a million cards: sums of many hours fit into 64 bits

# The same SQL on both databases.
_ADD = text(
    "INSERT INTO stranded (namespace, hour_ms, amount) VALUES (:namespace, :hour_ms, :amount)"
    " ON CONFLICT (namespace, hour_ms) DO UPDATE SET amount = stranded.amount + excluded.amount"
)
_KNOWN = text(
    "INSERT INTO map_hours (hour_ms, known_ms) VALUES (:hour_ms, :known_ms)"
    " ON CONFLICT (hour_ms) DO UPDATE SET known_ms = map_hours.known_ms + excluded.known_ms"
)


@dataclass(frozen=True, slots=True)
class LastPost:
    """The last post of the map: when it came, whose term it named, and the terms before that one."""

    received_ms: int
    term: str
    earlier: tuple[str, ...] = ()

    def is_over(self, term: str) -> bool:
        """Whether another term has posted after this one."""
        return term in self.earlier

    def then(self, received_ms: int, term: str) -> "LastPost":
        """With a post after it."""
        at_ms = max(received_ms, self.received_ms)
        if term == self.term:
            return LastPost(at_ms, term, self.earlier)
        return LastPost(at_ms, term, (*self.earlier, self.term)[-_MOST_TERMS:])


def last_post(connection: Connection) -> LastPost | None:
    """The last post; None before the first."""
    row = connection.execute(select(MAP_POSTS)).first()
    return None if row is None else LastPost(row.received_ms, row.term, tuple(orjson.loads(row.earlier)))


def note(connection: Connection, last: LastPost) -> None:
    """Write the last post."""
    connection.execute(delete(MAP_POSTS))
    earlier = orjson.dumps(last.earlier).decode()
    row = {"id": 1, "received_ms": last.received_ms, "term": last.term, "earlier": earlier}
    connection.execute(MAP_POSTS.insert(), row)


def count(connection: Connection, by_namespace: Mapping[str, int], since_ms: int, until_ms: int) -> None:
    """Add what these namespaces stranded, in milli-GPU, between two posts."""
    if not 0 < until_ms - since_ms <= FRESH_MS:
        return
    hours = tuple(_hours(Interval(since_ms, until_ms)))
    connection.execute(_KNOWN, [{"hour_ms": hour_ms, "known_ms": ms} for hour_ms, ms in hours])
    rows = [
        {"namespace": namespace, "hour_ms": hour_ms, "amount": min(milli, _MOST_MILLI) * ms}
        for namespace, milli in sorted(by_namespace.items())
        for hour_ms, ms in hours
        if milli
    ]
    if rows:
        connection.execute(_ADD, rows)


def stranding_ever(connection: Connection) -> frozenset[str]:
    """The namespaces that ever stranded a card."""
    return frozenset(connection.scalars(select(STRANDED.c.namespace).distinct()))


def _hours(during: Interval) -> Iterator[tuple[int, int]]:
    """The hours that an interval meets, with the milliseconds of it in each."""
    for hour_ms in range(during.start_ms // HOUR_MS * HOUR_MS, during.end_ms, HOUR_MS):
        yield hour_ms, during.within(Interval(hour_ms, hour_ms + HOUR_MS)).length_ms
