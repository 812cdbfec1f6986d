"""Reads the ledger for requests: statements, standings and reports, each of one moment of the database."""

import gzip
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from threading import Lock
from typing import Any
from zoneinfo import ZoneInfo

import orjson

from timekeeper.accounts.account_rows import AccountRow, group_of, statement_of
from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import DEFAULTS, GROUP, BudgetEntry, History, history_of, is_group
from timekeeper.accounts.card_use.idleness import IdleAction
from timekeeper.accounts.changes import NEVER, Pulse
from timekeeper.accounts.grants import NO_GRANTS
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.usage import (
    PricedCorrection,
    PriceInterval,
    ReportLine,
    ReportQuery,
    price_intervals,
)
from timekeeper.api.ledger.protected_reading import ProtectedReading, read_protected
from timekeeper.api.ledger.recent_value import RecentValue
from timekeeper.core.budgets.modes import ModeSource
from timekeeper.core.ledger.months import Months
from timekeeper.core.names import Mode
from timekeeper.core.protected import Published, decoded
from timekeeper.core.wire import StandingWord
from timekeeper.store import accounts, held_pods, ledger, months
from timekeeper.store.engine.engine import Connection, Store, UnavailableError
from timekeeper.store.engine.upgrade import take_time
from timekeeper.store.reports import reports


def stated(connection: Connection, history: History, subjects: Collection[str]) -> dict[str, Statement]:
    """The accounts of these namespaces and groups, each with its group's, as the settler wrote them last.
    Raises NotWrittenError."""
    rows = _rows(connection, history, subjects)
    return {subject: statement_of(history, subject, rows) for subject in subjects}


def _rows(connection: Connection, history: History, subjects: Collection[str]) -> dict[str, AccountRow]:
    """Their rows, with those of their groups."""
    rows = accounts.rows(connection, subjects)
    groups = {GROUP + group for subject in subjects if (group := group_of(history, subject, rows))}
    if more := groups - rows.keys():
        rows |= accounts.rows(connection, more)
    return rows


def held_of(connection: Connection, history: History, subject: str, now_ms: int) -> list[HeldPod]:
    """The pods behind the gate of a namespace, or of a group's; "": of all."""
    pods = held_pods.held(connection, "" if is_group(subject) else subject)
    return [pod for pod in pods if history.covers(subject, pod.namespace, now_ms)]


FASTEST = 1  # compresses a megabyte in milliseconds, once per revision


@dataclass(frozen=True, slots=True)
class ServedStandings:
    """A standings document, also gzipped, with its standings by namespace for our own use."""

    revision: str
    body: bytes
    packed: bytes
    words: Mapping[str, StandingWord]
    default: StandingWord
    protected: Mapping[str, Published] = field(default_factory=dict)  # of entries with `protect`
    settings: Mapping[str, Any] = field(default_factory=dict)  # as `core.wire.StandingSettings`

    def word(self, namespace: str) -> StandingWord:
        """The namespace's standing."""
        return self.words.get(namespace, self.default)


NOT_SERVED = ServedStandings("", b"", b"", {}, "UNKNOWN")


_SILENT_MS = 10_000
# A replica takes over from a silent settler, and all keep serving until it has started:
# a Lease's duration, a transaction that stood still, and a first look at the cluster.
_TAKEOVER_MS = 45_000
_BEGAN_MS = 60_000  # how long the beginning of the ledger is remembered, for no index has it


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReading:
    """A statement of a namespace or group with the error of its entry, and its group's."""

    namespace: str
    statement: Statement
    error: str
    group_error: str = ""
    protected: ProtectedReading | None = None  # of an entry with `protect`
    placement: str = "on"  # of the cluster; so is the next one
    fair_share: str = "off"
    silent_since: int | None = None  # when the settler decided last, if that is long ago
    mode: Mode | None = None  # of a namespace
    mode_source: ModeSource = "cluster"
    each_period: int = 0  # what its group passes on anew in each period
    idle: IdleAction | None = None  # what happens to idle pods of a namespace


class LedgerReader:
    """Reads the database for callers. Entries and the standings document are cached until they change.
    ``only_meter``: the ledger governs nothing."""

    def __init__(self, store: Store, clock: Callable[[], int], only_meter: bool = False) -> None:
        self.store = store
        self.only_meter = only_meter
        self._clock = clock
        self._lock = Lock()
        # the newest entry's number, the entry, and the history until then
        self._history: tuple[int, tuple[BudgetEntry, ...], History] = (0, (), history_of((), only_meter))
        self.known = NOT_SERVED  # the last document
        self._began = RecentValue(self._first_ms)

    def pulse(self) -> Pulse:
        """The settler's last write and decision."""
        with self.store.reading() as connection:
            return ledger.pulse(connection) or NEVER

    @property
    def silent_ms(self) -> int:
        """A settler that has written nothing for so long is away."""
        return _TAKEOVER_MS if self.store.is_shared else _SILENT_MS

    def silent_since(self, pulse: Pulse) -> int | None:
        """When a settler that is away wrote last; None: it is not, or it never wrote."""
        is_away = pulse.tick_ms and self._clock() - pulse.tick_ms > self.silent_ms
        return pulse.tick_ms if is_away else None

    def standings(self) -> tuple[ServedStandings, Pulse]:
        """The standings document, and the time of the settler's last decision."""
        with self.store.reading() as connection:
            return self.served(connection), ledger.pulse(connection) or NEVER

    def served(self, connection: Connection) -> ServedStandings:
        """The present standings document; decoded once per revision."""
        known = self.known
        asked = connection.execute(ledger.NEWEST_STANDINGS, {"known": known.revision})
        return self.newest(asked.all(), known)

    def newest(self, rows: Sequence[Any], known: ServedStandings) -> ServedStandings:
        """The document by the rows of `ledger.NEWEST_STANDINGS`, asked with the revision of ``known``."""
        if not rows:
            return NOT_SERVED
        if rows[0].body is not None:
            revision, body = rows[0].revision, rows[0].body.encode()
            document = orjson.loads(body)
            words = {name: entry["standing"] for name, entry in document["namespaces"].items()}
            packed = gzip.compress(body, FASTEST, mtime=0)
            entries = document["namespaces"].items()
            protected = {name: each for name, entry in entries if (each := decoded(entry)) is not None}
            default = document["default"]["standing"]
            settings = document["settings"]
            known = ServedStandings(revision, body, packed, words, default, protected, settings)
            self.known = known
        return known

    def account_now(self, namespace: str) -> AccountReading:
        """One namespace's present account."""
        with self.store.reading() as connection:
            return self._readings(connection, (namespace,))[0]

    def account_page(
        self, limit: int | None = None, after: str = "", group: str = ""
    ) -> tuple[list[AccountReading], str]:
        """The accounts, by name, of namespaces with an entry, or with a session if the default has a limit:
        at most ``limit``, after the given name; with ``group`` of those that are in it now. Also the name
        after which the next page begins; empty on the last page."""
        with self.store.reading() as connection:
            names = self.members(connection, GROUP + group if group else "")
            left = [name for name in names if name > after]
            page = left if limit is None else left[:limit]
            return self._readings(connection, page), page[-1] if len(page) < len(left) else ""

    def members(self, connection: Connection, key: str) -> list[str]:
        """The namespaces in the group of this key now, of those that `account_page` lists; "": all."""
        now_ms, history = self.moment(connection)
        return [name for name in self._listed(connection) if history.covers(key, name, now_ms)]

    def all_accounts(self) -> tuple[list[AccountReading], list[AccountReading]]:
        """What `account_page` gives without a limit, and `group_accounts`, of one moment."""
        with self.store.reading() as connection:
            names, groups = self._listed(connection), self._groups(connection)
            found = self._readings(connection, [*names, *groups])
        return found[: len(names)], found[len(names) :]

    def group_accounts(self, group: str = "") -> list[AccountReading]:
        """The accounts of all groups that have an entry or are named by one, or of this one of them."""
        with self.store.reading() as connection:
            groups = self._groups(connection)
            return self._readings(
                connection, [each for each in groups if group in ("", each.removeprefix(GROUP))]
            )

    def began_ms(self) -> int | None:
        """The first moment that is charged, as it was a minute ago at most; None: nothing was yet."""
        return self._began.get(_BEGAN_MS) or self._first_ms()

    def _first_ms(self) -> int | None:
        with self.store.reading() as connection:
            return ledger.first_ms(connection)

    def broken_entries(self) -> dict[str, str]:
        """The budget entries with a mistake, by key, and what is wrong with them."""
        with self.store.reading() as connection:
            return ledger.entry_errors(connection)

    def _listed(self, connection: Connection) -> list[str]:
        history = self.history(connection)
        names = history.namespaces()
        if history.text(DEFAULTS) is not None:
            names |= ledger.namespaces(connection)
        return sorted(names)

    def _groups(self, connection: Connection) -> list[str]:
        return sorted(GROUP + each for each in self.history(connection).groups)

    def account(self, connection: Connection, subject: str) -> Statement:
        """The account of a namespace or group with all of its grants, also those since the last tick, inside
        the transaction of a caller who grants. Raises NotWrittenError."""
        history = self.history(connection)
        found = stated(connection, history, (subject,))[subject]
        span, balance = found.account.span, found.balance
        if balance.granted is None:
            return found
        key = (subject, span.start_ms, span.end_ms)
        granted = ledger.granted_of(connection, [key]).get(key, NO_GRANTS)
        # a namespace with the account of `DEFAULTS` has no grants yet
        due = found.in_force.budget.amount or 0 if granted.by_budget is None else 0
        return replace(found, balance=replace(balance, granted=granted.amount + due))

    def moment(self, connection: Connection) -> tuple[int, History]:
        """The present time, not before the last entry's, and the budget history."""
        history = self.history(connection)
        return max(self._clock(), history.newest_ms()), history

    def load(self) -> None:
        """Read all entries before a request needs them, and parse them after the transaction."""
        with suppress(UnavailableError):  # then the first request reads them
            with self.store.reading() as connection:
                newest = ledger.newest_entry(connection)
                found = tuple(ledger.entries(connection, 0, newest))
            with self._lock:
                self._history = newest, found[-1:], history_of(found, self.only_meter)

    def history(self, connection: Connection) -> History:
        """The entries, with those that were added since they were read."""
        newest = ledger.newest_entry(connection)
        with self._lock:
            number, last, history = self._history
            if number != newest:
                if last != tuple(ledger.entries(connection, number, number)):  # the database was restored
                    number, history = 0, history_of((), self.only_meter)
                history = history.followed_by(ledger.entries(connection, number + 1, newest))
                self._history = newest, tuple(ledger.entries(connection, newest, newest)), history
            return history

    def calendar(self) -> tuple[str, int]:
        """The budgets' time zone, and the present time."""
        with self.store.reading() as connection:
            now_ms, history = self.moment(connection)
        return history.settings(now_ms).time_zone, now_ms

    def zone(self) -> ZoneInfo:
        """The budgets' time zone."""
        return ZoneInfo(self.calendar()[0])

    def zone_now(self) -> tzinfo:
        """The same; UTC while the database is away."""
        with suppress(UnavailableError):
            return self.zone()
        return UTC

    def cluster_names(self) -> tuple[tuple[int, str], ...]:
        """See `History`."""
        with self.store.reading() as connection:
            return self.history(connection).cluster_names()

    def months(self) -> tuple[Months, History, int]:
        """The ledger's months, the budget history, and the present time."""
        first_ms = self.began_ms()
        with self.store.reading() as connection:
            now_ms, history = self.moment(connection)
            return months.calendar(connection, history, first_ms), history, now_ms

    def lines(self, asked: ReportQuery, limit: int | None) -> Generator[ReportLine]:
        """A report's lines, streamed, all of one moment of the database, which stays open until the last line
        or until the generator is closed.

        Without a limit they are sent while they are read: the database waits for a slow client.
        """
        with self.store.reading() as connection:
            if limit is None:
                take_time(connection)
            terms: Iterable[PriceInterval] = ()
            if asked.has_dated:
                names = reports.namespaces(connection, asked)
                terms = price_intervals(self.history(connection), names, asked.hull, asked.group)
            yield from reports.lines(connection, asked, terms, limit)

    def corrections(self, asked: ReportQuery) -> list[PricedCorrection]:
        """The parts of corrections that were made in each of the report's time ranges, the oldest first."""
        with self.store.reading() as connection:
            history, found = self.history(connection), list[PricedCorrection]()
            made = (
                (span, correction)
                for span in (asked.span, *asked.beside)
                for correction in months.corrections(connection, asked.namespace or "", made=span)
            )
            for span, correction in made:
                for terms, part in months.parts_of(connection, history, correction):
                    if asked.group in ("", terms[0]):
                        entry = replace(correction, amount=part.amount, at_ms=part.from_ms)
                        own = dict(zip(("group", "price", "currency"), terms, strict=True))
                        found.append(PricedCorrection(correction=entry, span=span, **own, part=part))
        return found

    def _readings(self, connection: Connection, names: Collection[str]) -> list[AccountReading]:
        now_ms, history = self.moment(connection)
        errors, settings = ledger.entry_errors(connection), history.settings(now_ms)
        rows = _rows(connection, history, names)
        tick_ms = rows[DEFAULTS].as_of_ms
        found = {name: statement_of(history, name, rows) for name in names}
        served = self.served(connection)
        return [
            AccountReading(
                namespace=name,
                statement=account,
                error=errors.get(name) or errors.get(account.in_force.key, ""),
                group_error=errors.get(GROUP + account.in_force.budget.group, ""),
                protected=read_protected(connection, history, name, served.protected.get(name), now_ms),
                placement=settings.placement,
                fair_share=settings.fair_share,
                silent_since=tick_ms if self._clock() - tick_ms > _SILENT_MS else None,
                mode=None if is_group(name) else history.mode(name, now_ms),
                mode_source=history.mode_source(name, now_ms),
                each_period=_part(history, name, account),
                idle=None if is_group(name) else _idle(history, name, now_ms),
            )
            for name, account in found.items()
        ]


def _idle(history: History, namespace: str, now_ms: int) -> IdleAction | None:
    terms = history.idle_terms(namespace, now_ms)
    return None if terms is None else terms.action


def _part(history: History, namespace: str, account: Statement) -> int:
    """What the namespace's group passes on to it in each period, by its entry of now."""
    group = account.group
    if group is None or account.in_force.budget.amount is None:
        return 0
    is_same = group.account.kind == account.account.kind
    return dict(group.in_force.budget.split).get(namespace, 0) if is_same else 0
