"""The timekeeper in a simulated cluster: `decide` and its state, over a database in memory that survives a
killed settler, with the evictor and the releaser as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from tests.story.pods import PodServer
from timekeeper.accounts.budget_history import BudgetEntry, History, history_of
from timekeeper.accounts.card_use.idleness import IdlePeriod, IdlePod
from timekeeper.accounts.card_use.overuse import FRESH_MS
from timekeeper.accounts.changes import NEVER, Changes, Pulse
from timekeeper.accounts.grants import BY_BUDGET, CARRY, SETTLER, Grant, GrantSums
from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.accounts.held.limits import HeldView
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session
from timekeeper.accounts.standings import StandingsDocument
from timekeeper.accounts.statements import AccountKey, Part
from timekeeper.core.decisions import Decision
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.tables import Table
from timekeeper.edge.events import EventRecorder
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchProgress
from timekeeper.settler.budget_entries import EntryChanges, read_entries
from timekeeper.settler.cluster.cluster_state import (
    BudgetConfigMap,
    ClusterState,
    KnownPriorityClass,
    WatchUpdate,
)
from timekeeper.settler.cluster.known_nodes import KnownNode, NodeLease
from timekeeper.settler.decide.decide import TickInputs, decide, listed_namespaces
from timekeeper.settler.evictions.budget_round import BudgetRound
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.rounds import IdleRound, OvertimeRound
from timekeeper.settler.releaser import Releaser
from timekeeper.settler.state.ledger_state import FutureHeadroom, LedgerState
from timekeeper.settler.state.tick_view import tick_view
from timekeeper.settler.state.totals import GrantCache
from timekeeper.store.engine.engine import UnavailableError
from timekeeper.store.fencing import Epoch
from timekeeper.store.ledger import Sessions


@dataclass
class Database:
    """What is written, in memory (`totals.StoredTotals`). ``epoch``: of the newest settler."""

    entries: list[BudgetEntry] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    postings: dict[str, list[Posting]] = field(default_factory=dict)  # by UID
    by_namespace: dict[str, list[Posting]] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)
    held: dict[str, HeldPod] = field(default_factory=dict)
    declared: dict[str, DeclaredReservation] = field(default_factory=dict)
    # node -> time of its last report, and its idle pods
    idle: dict[str, tuple[int, dict[str, IdlePeriod]]] = field(default_factory=dict)
    pulse: Pulse = NEVER
    published: StandingsDocument | None = None
    epoch: int = 0
    is_away: bool = False
    _asked: Any = None  # the statement that was executed last

    def write(self, changes: Changes) -> None:
        """What the settler writes of a tick."""
        self.entries += changes.entries
        for session in (*changes.opened, *changes.changed):
            self.sessions[session.uid] = session
        for posting in changes.postings:
            self.postings.setdefault(posting.session_uid, []).append(posting)
            self.by_namespace.setdefault(posting.namespace, []).append(posting)
        known = {each.idempotency_key for each in self.grants} if changes.grants else set()
        assert known.isdisjoint(each.idempotency_key for each in changes.grants)
        self.grants += changes.grants
        self.watermarks |= changes.watermarks
        self.waiting |= changes.waiting or {}
        self.held |= {each.uid: each for each in changes.held}
        for uid in changes.released:
            self.held.pop(uid, None)
        self.declared |= {each.uid: each for each in changes.declared}
        for uid in changes.undeclared:
            del self.declared[uid]
        self.pulse = changes.pulse or self.pulse
        self.published = changes.published or self.published

    def posted(self, parts: Iterable[Part]) -> dict[Part, int]:
        """See `StoredTotals`."""
        return {
            part: amount_within(self.by_namespace.get(part[0], ()), Interval(part[1], part[2]))
            for part in parts
        }

    def sums(self) -> dict[AccountKey, GrantSums]:
        """The sums of all grants by account."""
        found: dict[AccountKey, GrantSums] = {}
        for each in self.grants:
            key = each.subject, each.span.start_ms, each.span.end_ms
            sums = found.get(key, GrantSums())
            if (each.kind in BY_BUDGET and each.actor == SETTLER) or each.kind == CARRY:
                found[key] = sums.plus(each)
            else:
                found[key] = replace(sums, by_hand=sums.by_hand + each.amount)
        return found

    def granted(self, keys: Iterable[AccountKey]) -> dict[AccountKey, GrantSums]:
        """See `StoredTotals`."""
        sums = self.sums()
        return {key: sums[key] for key in keys if key in sums}

    def last_granted(self, before_ms: int) -> dict[str, Interval]:
        """See `StoredTotals`."""
        ended = sorted((end, start, name) for name, start, end in self.sums() if end <= before_ms)
        return {name: Interval(start, end) for end, start, name in ended}

    def posted_by_pods(self, namespace: str, span: Interval) -> list[tuple[str, str, int]]:
        """See `StoredTotals`."""
        theirs = (each for each in self.by_namespace.get(namespace, ()))
        pods = ((self.sessions[each.session_uid], amount_within((each,), span)) for each in theirs)
        return [(session.owner, session.labels, amount) for session, amount in pods]

    def charges_since(self, names: Sequence[str], since_ms: int) -> list[tuple[str, Interval, float]]:
        """See `StoredTotals`."""
        theirs = (posting for name in names for posting in self.by_namespace.get(name, ()))
        return [(new.namespace, new.interval, new.rate_milli) for new in theirs if new.to_ms > since_ms]

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A connection that answers which epoch is the newest, and takes reservations of declared time: all
        that evictors and releaser ask."""
        if self.is_away:
            raise UnavailableError("the database is away")
        yield self

    writing = reading
    dialect = SimpleNamespace(name="sqlite")
    rowcount = 0

    def execute(self, statement: Any, rows: Sequence[Any] | None = ()) -> "Database":
        self._asked = statement
        for row in rows or ():
            assert row["uid"] not in self.declared
            self.declared[row["uid"]] = DeclaredReservation(**row)
        return self

    def idle_pods(self, now_ms: int) -> list[IdlePod]:
        """As `node_usage.idle`."""
        return [
            IdlePod(uid, its.namespace, its.name, node, period)
            for node, (at_ms, periods) in self.idle.items()
            for uid, period in periods.items()
            if now_ms - at_ms < FRESH_MS
            and (its := self.sessions.get(uid)) is not None
            and its.ended_ms is None
            and its.node == node
        ]

    def one(self) -> tuple[Any, ...]:
        """Of the newest epoch its number and holder and, where it is asked for, the last pulse."""
        return (self.epoch, "settler", self.pulse.tick_ms)[: len(self._asked.selected_columns)]

    def all(self) -> list[tuple[Any, ...]]:
        """The same."""
        return [self.one()]


class NoEvents:
    """Takes Events and drops them."""

    def post(self, *_what: object) -> None:
        """One Event."""


@dataclass
class Timekeeper:
    """One settler's process; `restart` is a killed one's successor. ``decisions``: what it recorded."""

    database: Database
    server: PodServer
    clock: Callable[[], int]
    nodes: tuple[KnownNode, ...]
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = BudgetConfigMap("bursar-budgets", "u", ())
        self.settings = BudgetConfigMap("bursar-settings", "s", ())
        self._lists: tuple[str, ...] = ()
        self._later = FutureHeadroom()
        self.restart({each.name: self.clock() for each in self.nodes})

    def restart(self, leases: dict[str, int]) -> None:
        """The settler is killed: what it knew is lost, what is written stays. It lists everything anew."""
        self.database.epoch += 1
        term = Epoch(self.database.epoch, "settler")
        stored = self.database
        unsettled = {uid: each for uid, each in stored.sessions.items() if each.settled_ms is None}
        self.ledger = LedgerState(
            history=history_of(stored.entries),
            errors={},
            sessions=Table(unsettled),
            posted={uid: tuple(stored.postings.get(uid, ())) for uid in unsettled},
            beats={},
            watermarks=dict(stored.watermarks),
            namespaces={each.namespace for each in stored.sessions.values()},
            waiting={name: rate for name, rate in stored.waiting.items() if rate},
            held=dict(stored.held),
            pulse=stored.pulse,
        )
        self.ledger.declared.add(stored.declared.values())
        self._reserved: list[DeclaredReservation] = []
        self.cluster = ClusterState()
        self.view = tick_view(self.cluster, self.ledger, HeldView())
        self._list("pods", *(each.for_ledger() for each in self.server.pods.values()))
        self._list("nodes", *self.nodes)
        self._list("leases", *(NodeLease(name, at_ms) for name, at_ms in leases.items()))
        self._list("configmaps", self.config, self.settings)
        classes = {"gpu-default-priority": (0, "PreemptLowerPriority"), "gpu-lower-priority": (-5, "Never")}
        self._list("priorityclasses", *(KnownPriorityClass(name, *each) for name, each in classes.items()))
        store: Any = self.database
        api: Any = self.server
        events = cast(EventRecorder[str], NoEvents())
        context = EvictorContext(
            store, term, api, events, lambda: self.view, self.clock, self.clock, self.decisions.append
        )
        self.evictor = BudgetRound(context, lambda: 0.0)
        self.overtime = OvertimeRound(context)
        self.idle = IdleRound(context, lambda connection, now_ms: cast(Any, connection).idle_pods(now_ms))
        self.releaser = Releaser(
            store,
            term,
            self._send_patch,
            lambda *_: None,
            lambda: self.view.held,
            self.clock,
            self.decisions.append,
            lambda written: self._reserved.extend(written),
        )

    @property
    def held_view(self) -> HeldView:
        """What releases depend on, of the last tick."""
        return self.view.held

    def _send_patch(self, path: str, body: Any) -> Any:
        return self.server.call("PATCH", path, body)

    def _list(self, source: str, *items: Any) -> None:
        self.cluster.apply(WatchUpdate(source, self.clock(), ObjectsListed(items)))

    def hear(self, source: str, item: Any, deleted: bool = False) -> None:
        """A watch shows an object."""
        self.cluster.apply(WatchUpdate(source, self.clock(), ObjectChanged(item, deleted)))

    def hear_pods(self, changes: Iterable[tuple[LedgerPod, bool]]) -> None:
        """The watch of pods shows these, each with whether it was removed, and is complete until now."""
        for pod, deleted in changes:
            self.hear("pods", pod, deleted)
        self.cluster.apply(WatchUpdate("pods", self.clock(), WatchProgress()))

    def tick(self, is_written: bool = True) -> tuple[BudgetEntry, ...]:
        """Decide and write, as `Settler.tick`; returns the entries that took effect. ``is_written``: False if
        the database is away, so that nothing is written and all of it is decided again."""
        ledger, now_ms = self.ledger, max(self.clock(), self.ledger.history.newest_ms() + 1)
        ledger.declared.add(self._reserved)
        self._reserved.clear()
        read = read_entries(self.cluster.config_maps, ledger.history, ledger.errors, now_ms)
        assert not read.errors, read.errors
        self._load_settled()
        self._read_grants(now_ms)
        history = ledger.history.followed_by(read.entries) if read.entries else ledger.history
        decision = decide(self.cluster, ledger, self._inputs(read, history, now_ms))
        if not is_written:
            return ()
        self.database.write(decision.changes)
        ledger.protected = decision.protected
        ledger.apply_changes(decision.changes, history, decision.statement_cache, decision.accounts)
        ledger.classes_version = self.cluster.classes.version
        ledger.forget(self.cluster.pods)
        self.cluster.mark_written(decision.sessions.all.deferred)
        waits, made = ledger.without_node, decision.statement_cache.statements
        reserved = frozenset(ledger.declared.rows.keys() & waits.held.keys())
        later = self._later.of(ledger, made, self._lists, now_ms)
        view = waits.held, waits.rates, dict(waits.seen), made, history, now_ms
        spared = (
            frozenset(uid for each in decision.protected.values() for uid in each.uids) & waits.held.keys()
        )
        held = HeldView(*view, {}, reserved, later, len(waits.untried), spared)
        self.view = tick_view(self.cluster, ledger, held)
        return read.entries

    def _inputs(self, read: EntryChanges, history: History, now_ms: int) -> TickInputs:
        listed = listed_namespaces(history, self.cluster, self.ledger)
        self._lists = self._lists if self._lists == listed else listed
        return TickInputs(read, history, self._lists, self.database, now_ms)

    def _load_settled(self) -> None:
        """As `Settler._load_sessions`."""
        uids = {*self.cluster.pods.changed, *self.cluster.pods.deleted}
        unknown = [uid for uid in uids if self.ledger.session(uid) is None and uid in self.database.sessions]
        if unknown:
            sessions = {uid: self.database.sessions[uid] for uid in unknown}
            self.ledger.add_sessions(
                Sessions(sessions, {uid: tuple(self.database.postings.get(uid, ())) for uid in unknown})
            )

    def _read_grants(self, now_ms: int) -> None:
        """As `ledger_state.read_grants`."""
        before, mark = self.ledger.grants, (len(self.database.grants), 0)
        if mark == before.mark:
            return
        sums = self.database.sums()
        now = {key: each for key, each in sums.items() if key[2] > now_ms}
        ended = {key: sums[key] for key in before.ended if key in sums}
        self.ledger.take_grants(GrantCache(mark, now_ms, now, ended))
