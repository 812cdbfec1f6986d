"""The ledger as the settler holds it in memory: what the database contains, so that a tick writes only
differences."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.balance import UnsettledSession
from timekeeper.accounts.budget_history import History, history_of
from timekeeper.accounts.changes import NEVER, Changes, Pulse
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.reserved import pod_uid
from timekeeper.accounts.session import Session, evidence
from timekeeper.accounts.standings import EntryCache, StandingsDocument
from timekeeper.accounts.statements import Part
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.pod_notices import BudgetState
from timekeeper.settler.state.declared import DeclaredReservations
from timekeeper.settler.state.open_session_totals import OpenSessionTotals
from timekeeper.settler.state.statement_cache import StatementCache
from timekeeper.settler.state.totals import GrantCache
from timekeeper.settler.state.unbound_pods import UnboundPods
from timekeeper.store.engine.engine import Store
from timekeeper.store.queries import held_pods
from timekeeper.store.queries import ledger as reading


@dataclass(slots=True)
class LedgerState:
    """Everything the settler knows of the database, and the totals and statements it caches from tick to
    tick."""

    history: History  # all budget entries, dated by when they took effect
    errors: dict[str, str]  # budget entry key -> what is wrong with it, as published
    sessions: dict[str, Session]  # UID -> session that is not settled
    # UID -> postings of a session that is open, or settled with its pod still present
    posted: dict[str, tuple[Posting, ...]]
    beats: dict[str, int]  # UID -> time of the latest heartbeat
    watermarks: dict[str, int]  # node -> until when its pods are known to have been running
    namespaces: set[str]  # every namespace that ever had a session
    waiting: dict[str, int]  # namespace -> rate of its pods without a node, as written
    published: StandingsDocument | None = None  # the standings document as written
    settled: dict[str, Session] = field(default_factory=dict)  # UID -> settled session whose pod still exists
    # UIDs of pods that still exist and whose sessions have been rolled up
    folded: set[str] = field(default_factory=set)
    # posted amount by namespace and span; grows by our own postings, read anew at start
    totals: dict[Part, int] = field(default_factory=dict)
    # namespace -> its state as last logged
    budget_states: dict[str, BudgetState] = field(default_factory=dict)
    # namespace -> the beginning of the period whose early end was forecast last
    forecast_periods: dict[str, int] = field(default_factory=dict)
    pulse: Pulse = NEVER  # the last sign of life that was written
    # what open sessions owe and reserve
    open_totals: OpenSessionTotals = field(default_factory=OpenSessionTotals)
    unbound_pods: UnboundPods = field(default_factory=UnboundPods)  # rates of pods without a node
    grants: GrantCache = field(default_factory=GrantCache)  # grants by account
    statement_cache: StatementCache | None = None  # the statements of the last tick
    new_beats: set[str] = field(default_factory=set)  # UIDs with a heartbeat later than ``open_totals`` knows
    # subjects whose grants differ from those in ``statement_cache``
    changed_grants: set[str] = field(default_factory=set)
    held: Mapping[str, HeldPod] = field(default_factory=dict)  # UID -> held pod, as written
    queued: frozenset[str] = frozenset()  # namespaces whose pods wait for their budget, in the document
    classes_version: int = 0  # version of the priority classes in the standings document
    declared: DeclaredReservations = field(default_factory=DeclaredReservations)  # without a session
    entry_cache: EntryCache = field(default_factory=EntryCache)  # encoded entries of the standings document
    watermarks_ms: int = 0  # when watermarks were last written
    # UIDs of vanished pods that a fresh report of their node's agent lists
    listed: set[str] = field(default_factory=set)
    # UID of a waiting pod -> UIDs of the unsettled sessions for its reserved cards
    reserved: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for session in self.sessions.values():
            self._index_reserved(session)

    def session(self, uid: str) -> Session | None:
        """The session of this UID, open or settled; None if there is none."""
        return self.sessions.get(uid) or self.settled.get(uid)

    def unsettled(self, session: Session, watermark_ms: int | None) -> UnsettledSession:
        """The session with all its evidence and postings; ``watermark_ms`` is its node's."""
        known = evidence(session, watermark_ms, self.beats.get(session.uid), session.uid in self.listed)
        return UnsettledSession(session, known, self.posted.get(session.uid, ()))

    def add_sessions(self, found: reading.Sessions) -> None:
        """Add sessions that were read from the database because their pods exist."""
        for uid, session in found.sessions.items():
            table = self.sessions if session.settled_ms is None else self.settled
            table[uid] = session
            self._index_reserved(session)
            self.open_totals.is_whole &= session.settled_ms is not None
        self.posted.update(found.posted)
        self.beats |= found.beats
        self.folded |= found.folded

    def apply_changes(self, changes: Changes, history: History, cache: StatementCache) -> None:
        """Apply changes after they were written."""
        self.history, self.statement_cache = history, cache
        self.errors = dict(changes.errors) if changes.errors is not None else self.errors
        self.waiting = self.unbound_pods.rates
        self.queued = self.unbound_pods.queued
        self.held = self.unbound_pods.held
        self.declared.remove(changes.undeclared)
        self.declared.add(changes.declared)
        self.declared.changed.clear()
        self.published = changes.published or self.published
        self.pulse = changes.pulse or self.pulse
        self.watermarks.update(changes.watermarks)
        self.watermarks_ms = self.pulse.decided_ms if changes.watermarks else self.watermarks_ms
        for session in (*changes.opened, *changes.changed):
            self._put(session)
        by_namespace: dict[str, list[Posting]] = {}
        for posting in changes.postings:
            self.posted[posting.session_uid] = (*self.posted.get(posting.session_uid, ()), posting)
            by_namespace.setdefault(posting.namespace, []).append(posting)
        for namespace, start, end in self.totals if by_namespace else ():
            new = by_namespace.get(namespace, ())
            self.totals[namespace, start, end] += amount_within(new, Interval(start, end))
        self.new_beats.clear()
        self.changed_grants.clear()
        at_ms = max(cache.at_ms, history.newest_ms())
        self.open_totals.mark_written(lambda name: history.budget(name, at_ms).budget.amount is not None)

    def forget(self, there: Mapping[str, object]) -> None:
        """Drop settled sessions whose pods are gone: no further evidence can arrive for them."""
        for uid in [uid for uid in self.settled if uid not in there]:
            del self.settled[uid]
            self.posted.pop(uid, None)
            self.beats.pop(uid, None)
        self.folded = {uid for uid in self.folded if uid in there}

    def _put(self, session: Session) -> None:
        self.namespaces.add(session.namespace)
        mine, other = self.sessions, self.settled
        if session.settled_ms is not None:
            mine, other = other, mine
        other.pop(session.uid, None)
        mine[session.uid] = session
        self._index_reserved(session)

    def _index_reserved(self, session: Session) -> None:
        if not session.is_reserved:
            return
        uid = pod_uid(session.uid)
        if session.settled_ms is None:
            self.reserved.setdefault(uid, set()).add(session.uid)
            return
        self.reserved.get(uid, set()).discard(session.uid)
        if not self.reserved.get(uid):
            self.reserved.pop(uid, None)


def read_ledger_state(store: Store) -> LedgerState:
    """The database's content at one moment. The standings document is published anew, because its digest is
    not stored. Entries are parsed after the transaction: there may be thousands."""
    with store.reading() as connection:
        entries = reading.entries(connection)
        found = reading.unsettled(connection)
        declared = held_pods.declared(connection)
        ledger = LedgerState(
            history=history_of(()),
            errors=reading.entry_errors(connection),
            sessions=found.sessions,
            posted=found.posted,
            beats=reading.beats(connection),
            watermarks=reading.watermarks(connection),
            namespaces=set(reading.namespaces(connection)),
            waiting=reading.waiting(connection),
            held={each.uid: each for each in held_pods.held(connection)},
            pulse=reading.pulse(connection) or NEVER,
        )
    ledger.declared.add(declared)
    ledger.history = history_of(entries)
    return ledger
