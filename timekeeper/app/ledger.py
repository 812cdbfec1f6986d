"""The ledger as callers see it: statements, standings and reports, each of one moment of the database."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

import orjson

from timekeeper.accounts.balance import Held, Statement, figures_of, statement
from timekeeper.accounts.changes import NEVER, Pulse
from timekeeper.accounts.grants import NONE, Granted
from timekeeper.accounts.history import DEFAULTS, History, history_of
from timekeeper.accounts.session import evidence
from timekeeper.accounts.usage import Charged, Row, report
from timekeeper.core.ledger import Interval
from timekeeper.store import reading
from timekeeper.store.engine import Connection, Store

UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Served:
    """A standings document, with the standings in it by namespace for our own use."""

    revision: str
    body: bytes
    words: Mapping[str, str]
    default: str

    def word(self, namespace: str) -> str:
        """The namespace's standing."""
        return self.words.get(namespace, self.default)


NOT_SERVED = Served("", b"", {}, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Told:
    """One namespace's statement with what was read beside it."""

    namespace: str
    statement: Statement
    zone: str
    error: str


class Ledger:
    """Reads the database for callers. What rarely changes is kept until it does: the entries and the
    standings."""

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self.store = store
        self._clock = clock
        self._lock = Lock()
        self._history: tuple[int, History] = (0, history_of(()))
        self._served = NOT_SERVED

    def pulse(self) -> Pulse:
        """When the settler last wrote and decided."""
        with self.store.reading() as connection:
            return reading.pulse(connection) or NEVER

    def standings(self) -> tuple[Served, Pulse]:
        """The standings document, and when the settler last decided."""
        with self.store.reading() as connection:
            return self.served(connection), reading.pulse(connection) or NEVER

    def served(self, connection: Connection) -> Served:
        """The standings document as it is now; decoded once for each revision."""
        revision = reading.revision(connection)
        if not revision:
            return NOT_SERVED
        if self._served.revision != revision:
            body = reading.standings(connection)
            document = orjson.loads(body)
            words = {name: entry["standing"] for name, entry in document["namespaces"].items()}
            self._served = Served(revision, body.encode(), words, document["default"]["standing"])
        return self._served

    def told(self, namespace: str) -> Told:
        """One namespace's account now."""
        with self.store.reading() as connection:
            return self._told(connection, [namespace], namespace)[0]

    def all_told(self) -> list[Told]:
        """The accounts of all namespaces that have an entry, or a session where the default has a limit."""
        with self.store.reading() as connection:
            history = self.history(connection)
            names = {key for key in history.living() if not key.startswith("_")}
            if history.text(DEFAULTS) is not None:
                names |= reading.namespaces(connection)
            return self._told(connection, sorted(names), None)

    def account(self, connection: Connection, namespace: str) -> tuple[Statement, Granted]:
        """One namespace's statement and grants, inside a transaction of the caller's."""
        now_ms, history = self.moment(connection)
        figures = _figures(connection, now_ms, namespace)
        return _statement(connection, history, figures, namespace, now_ms), _granted(
            history, figures, namespace, now_ms
        )

    def moment(self, connection: Connection) -> tuple[int, History]:
        """Now, never before what took effect last, and the history."""
        history = self.history(connection)
        return max(self._clock(), history.newest_ms()), history

    def history(self, connection: Connection) -> History:
        """The entries, read again when one was added."""
        newest = reading.newest_entry(connection)
        with self._lock:
            if self._history[0] != newest:
                self._history = (newest, history_of(reading.entries(connection)))
            return self._history[1]

    def usage(self, span: Interval, namespace: str | None, by_pod: bool) -> tuple[Row, ...]:
        """What was charged for the time inside the span: posted, and pending of sessions that are not
        settled."""
        with self.store.reading() as connection:
            now_ms, _ = self.moment(connection)
            posted = reading.posted_by(connection, span, namespace, by_pod)
            pending = [
                (_who(each, by_pod), each.pending(span, now_ms)) for each in _held(connection, namespace)
            ]
        return report(posted, pending)

    def _told(self, connection: Connection, names: Iterable[str], only: str | None) -> list[Told]:
        now_ms, history = self.moment(connection)
        figures = _figures(connection, now_ms, only)
        errors = reading.entry_errors(connection)
        zone = history.settings(now_ms).time_zone
        told = []
        for name in names:
            each = _statement(connection, history, figures, name, now_ms)
            told.append(Told(name, each, zone, errors.get(name) or errors.get(each.in_force.key, "")))
        return told


@dataclass(frozen=True, slots=True)
class _Figures:
    granted: Mapping[reading.AccountKey, Granted]
    held: Mapping[str, list[Held]]
    waiting: Mapping[str, int]


def _figures(connection: Connection, now_ms: int, namespace: str | None) -> _Figures:
    held: dict[str, list[Held]] = {}
    for each in _held(connection, namespace):
        held.setdefault(each.session.namespace, []).append(each)
    return _Figures(reading.granted(connection, now_ms), held, reading.waiting(connection))


def _held(connection: Connection, namespace: str | None) -> list[Held]:
    """The sessions that are not settled, with all that is known of them."""
    found = reading.unsettled(connection, namespace)
    watermarks, beats = reading.watermarks(connection), reading.beats(connection, namespace=namespace)
    return [
        Held(
            session,
            evidence(session, watermarks.get(session.node), beats.get(uid)),
            found.posted.get(uid, ()),
        )
        for uid, session in found.sessions.items()
    ]


def _granted(history: History, figures: _Figures, namespace: str, now_ms: int) -> Granted:
    """The account's grants; before the settler has made its first, what that will be."""
    span = history.account(namespace, now_ms).span
    granted = figures.granted.get((namespace, span.start_ms, span.end_ms), NONE)
    if granted.by_budget is None:
        return Granted(history.budget(namespace, now_ms).budget.amount or 0, granted.by_hand)
    return granted


def _statement(
    connection: Connection, history: History, figures: _Figures, namespace: str, now_ms: int
) -> Statement:
    span = history.account(namespace, now_ms).span
    sums = figures_of(
        span,
        _granted(history, figures, namespace, now_ms).amount,
        reading.posted_within(connection, namespace, span),
        figures.held.get(namespace, ()),
        figures.waiting.get(namespace, 0),
        now_ms,
    )
    return statement(history, namespace, sums, now_ms)


def _who(held: Held, by_pod: bool) -> Charged:
    session = held.session
    if not by_pod:
        return Charged(session.namespace)
    return Charged(session.namespace, session.name, session.uid, session.owner, session.node, session.models)
