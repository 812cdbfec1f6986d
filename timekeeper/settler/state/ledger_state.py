"""The ledger as the settler holds it in memory: what the database contains, so that a tick writes only
differences."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from timekeeper.accounts.account_rows import AccountChanges, AccountRow, moments_of
from timekeeper.accounts.balance import Statement, UnsettledSession
from timekeeper.accounts.budget_history import GROUP, History, history_of
from timekeeper.accounts.changes import NEVER, Changes, Pulse
from timekeeper.accounts.claims.claim_sessions import consumers_of, held_by_claim, held_by_driver
from timekeeper.accounts.grants import GrantSums
from timekeeper.accounts.held.declared import (
    DeclaredReservation,
    HeldAmount,
    LaterPeriod,
    future_headroom,
    paying_namespaces,
)
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.protection import ProtectedPods
from timekeeper.accounts.session import CLAIMS_SEEN, Session, evidence
from timekeeper.accounts.standings import EntryCache, StandingsDocument
from timekeeper.accounts.statements import AccountKey, Part, Statements
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.tables import Table
from timekeeper.settler.pod_notices import BudgetState
from timekeeper.settler.state.fair_use import NO_USE, FairUse, ShareLayout, of_rows
from timekeeper.settler.state.pods_without_node import PodsWithoutNode
from timekeeper.settler.state.selected_use import SelectedUse
from timekeeper.settler.state.session_table import SessionTable
from timekeeper.settler.state.statement_cache import StatementCache
from timekeeper.settler.state.totals import GrantCache
from timekeeper.store import accounts, held_pods
from timekeeper.store import ledger as reading
from timekeeper.store.accounts import NotWrittenError
from timekeeper.store.engine.engine import Connection, Store
from timekeeper.store.reports import selected_use


@dataclass(slots=True)
class DeclaredReservations:
    """By UID of the pod. ``changed``: namespaces whose sum changed since the last written tick."""

    rows: dict[str, DeclaredReservation] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    _by_namespace: dict[str, dict[str, DeclaredReservation]] = field(default_factory=dict)

    def add(self, found: Iterable[DeclaredReservation]) -> None:
        """These are written."""
        for each in found:
            self.rows[each.uid] = each
            self._by_namespace.setdefault(each.namespace, {})[each.uid] = each
            self.changed.add(each.namespace)

    def remove(self, uids: Iterable[str]) -> None:
        """These are written no more."""
        for uid in uids:
            gone = self.rows.pop(uid)
            mine = self._by_namespace[gone.namespace]
            del mine[uid]
            if not mine:
                del self._by_namespace[gone.namespace]

    def namespaces(self) -> Iterable[str]:
        """Those with a reservation."""
        return self._by_namespace.keys()

    def within(
        self,
        namespace: str,
        span: Interval,
        without: Set[str],
        added: Iterable[DeclaredReservation],
    ) -> int:
        """What the namespace's pods reserve of the span. ``without``: UIDs of pods that do no more;
        ``added``: pods of any namespace that do from now on."""
        mine = self._by_namespace.get(namespace, {})
        now = (each for uid, each in mine.items() if uid not in without)
        new = (each for each in added if each.namespace == namespace)
        return sum(each.within(span) for each in (*now, *new))

    def amounts(self, namespace: str) -> Iterator[HeldAmount]:
        """The same one by one, for later periods."""
        for each in self._by_namespace.get(namespace, {}).values():
            until_ms = each.reserved_ms + each.length_ms
            yield HeldAmount(each.rate_milli, Interval(each.reserved_ms, until_ms), each.length_ms)


@dataclass(slots=True, kw_only=True)
class LedgerState:
    """Everything the settler knows of the database, and the totals and statements it caches from tick to
    tick."""

    history: History  # all budget entries, dated by when they took effect
    errors: dict[str, str]  # budget entry key -> what is wrong with it, as published
    sessions: Table[str, Session]  # UID -> session that is not settled
    # UID -> postings of a session that is open, or settled with its pod still present
    posted: dict[str, tuple[Posting, ...]]
    beats: dict[str, int]  # UID -> time of the latest heartbeat
    watermarks: dict[str, int]  # node -> until when its pods are known to have been running
    namespaces: set[str]  # every namespace that ever had a session
    waiting: dict[str, int]  # namespace -> rate of its pods without a node, as written
    gone: dict[str, int] = field(default_factory=dict)  # node -> since when there is no such Node
    leaseless: set[str] = field(default_factory=set)  # nodes with pods that have never had a Lease
    published: StandingsDocument | None = None  # the standings document as written
    settled: Table[str, Session] = field(default_factory=Table)  # UID -> settled session with its pod there
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
    table: SessionTable = field(default_factory=SessionTable)
    without_node: PodsWithoutNode = field(default_factory=PodsWithoutNode)  # rates of pods without a node
    grants: GrantCache = field(default_factory=GrantCache)  # grants by account
    statement_cache: StatementCache | None = None  # the statements of the last tick
    accounts: Mapping[str, Statement] = field(default_factory=dict)  # by subject, as written
    account_moments: Mapping[str, int] = field(default_factory=dict)  # of `moments_of`
    accounts_left: Set[str] = frozenset()  # subjects that time alone has changed since
    new_beats: set[str] = field(default_factory=set)  # UIDs with a heartbeat later than ``table`` knows
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
    of_host: set[str] = field(default_factory=set)  # UIDs of the unsettled sessions for CPU and memory
    # UID of a claim -> UID of its session whose end is not known
    running_claims: dict[str, str] = field(default_factory=dict)
    # namespace -> what its claims hold of GPUs, in milli-GPU, unweighted
    claims_milli: Table[str, int] = field(default_factory=Table)
    # driver -> the same of its devices; 0 once none is held
    claimed_by_driver: dict[str, int] = field(default_factory=dict)
    # UID of a pod -> UIDs of the running sessions of claims on GPUs that it uses
    claim_users: Table[str, tuple[str, ...]] = field(default_factory=Table)
    # UIDs of sessions of claims that the database has, of those that changed
    used_claims: Set[str] = frozenset()
    # UID of a claim -> its last end, of those that were allocated again since the last look
    claim_ends: Mapping[str, int] = field(default_factory=dict)
    # namespace and name of claims with a session, of those that serve changed pods
    claim_names: Set[tuple[str, str]] = frozenset()
    # namespace -> its protected pods, as of the last tick; a new object with each change
    protected: Mapping[str, ProtectedPods] = field(default_factory=dict)
    selected_use: SelectedUse = field(default_factory=SelectedUse)
    fair: FairUse = NO_USE  # as written
    _layout: ShareLayout | None = None  # of the last tick with shares

    def __post_init__(self) -> None:
        for session in self.sessions.values():
            self._index(session)

    def session(self, uid: str) -> Session | None:
        """The session of this UID, open or settled; None if there is none."""
        return self.sessions.get(uid) or self.settled.get(uid)

    def layout(self, history: History, now_ms: int, changed: Set[str] | None = None) -> ShareLayout:
        """How charges are distributed to accounts by this history. ``changed``: the keys in which it differs
        from that of the last written tick."""
        known = self._layout
        if known is None or known.history is not history:
            follows = known is not None and changed is not None and known.history is self.history
            if known is None or not follows or not known.is_same(history, changed or set(), now_ms):
                known = ShareLayout(history, now_ms)
            known.history = history
        self._layout = known
        return known

    def reserving(
        self, declared: Iterable[DeclaredReservation], history: History, now_ms: int
    ) -> Iterator[tuple[str, int]]:
        """What pods without a session that were released reserve, by namespace, and those that declare their
        time, all of it. Of others that wait nothing counts: a long queue is no use."""
        lookahead_ms = history.settings(now_ms).lookahead_ms
        for name, rate_milli in self.without_node.released.items():
            yield name, rate_milli * lookahead_ms
        for reservation in declared:
            yield reservation.namespace, reservation.rate_milli * reservation.length_ms

    def unsettled(self, session: Session, watermark_ms: int | None) -> UnsettledSession:
        """The session with all its evidence and postings; ``watermark_ms`` is its node's."""
        uid = session.uid
        known = evidence(session, watermark_ms, self.beats.get(uid), uid in self.listed)
        return UnsettledSession(session, known, self.posted.get(session.uid, ()))

    def row_of(self, session: Session) -> tuple[Session, tuple[Posting, ...], int, int]:
        """The session as the table takes it: with what is written beside it."""
        uid, mark_ms = session.uid, self.watermarks.get(session.witness, 0)
        return session, self.posted.get(uid, ()), self.beats.get(uid, 0), mark_ms

    def add_sessions(self, found: reading.Sessions) -> None:
        """Add sessions that were read from the database because their pods exist."""
        for uid, session in found.sessions.items():
            table = self.sessions if session.settled_ms is None else self.settled
            before, table[uid] = table.get(uid), session
            self._index(session, before)
        self.posted.update(found.posted)
        self.beats |= found.beats
        for uid in found.sessions.keys() & self.sessions.keys():
            self.table.put(*self.row_of(self.sessions[uid]))
            self.table.index_witness(self.sessions[uid])
        self.folded |= found.folded

    def take_grants(self, found: GrantCache) -> None:
        """Grants as `read_grants` gives them."""
        before = self.grants
        if found is before:
            return
        for old, new in ((before.now, found.now), (before.ended, found.ended)):
            self.changed_grants |= {key[0] for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
        self.grants = GrantCache(found.mark, found.at_ms, found.now)

    def apply_changes(
        self,
        changes: Changes,
        history: History,
        cache: StatementCache,
        accounts: AccountChanges,
        withheld: Set[str] = frozenset(),
        fair: FairUse = NO_USE,
    ) -> None:
        """Apply changes after they were written. ``withheld``: namespaces of which nothing is."""
        self.fair = fair
        if accounts.written or accounts.gone:
            kept = {name: made for name, made in self.accounts.items() if name not in accounts.gone}
            self.accounts = {**kept, **accounts.written}
            if self.accounts.keys() != self.account_moments.keys():
                self.account_moments = moments_of(self.accounts, self.account_moments)
        self.accounts_left = accounts.left
        self.history, self.statement_cache = history, cache
        self.errors = dict(changes.errors) if changes.errors is not None else self.errors
        self.waiting = self.without_node.rates
        self.queued = self.without_node.queued
        self.held = self.without_node.held
        self.declared.remove(changes.undeclared)
        self.declared.add(changes.declared)
        self.declared.changed.clear()
        self.published = changes.published or self.published
        self.pulse = changes.pulse or self.pulse
        self.watermarks.update(changes.watermarks)
        self.leaseless = {*self.leaseless, *changes.leases} - {n for n, had in changes.leases.items() if had}
        now = {**self.gone, **changes.gone} if changes.gone else self.gone
        self.gone = {name: at for name, at in now.items() if at is not None}
        if changes.watermarks.keys() - {CLAIMS_SEEN}:
            self.watermarks_ms = self.pulse.decided_ms
        written = (*changes.opened, *changes.changed)
        for session in written:
            self._put(session)
        self.table.remove([session.uid for session in written if session.settled_ms is not None])
        by_namespace: dict[str, list[Posting]] = {}
        for posting in changes.postings:
            self.posted[posting.session_uid] = (*self.posted.get(posting.session_uid, ()), posting)
            by_namespace.setdefault(posting.namespace, []).append(posting)
        self.selected_use.apply(changes.postings, self.session)
        for namespace, start, end in self.totals if by_namespace else ():
            new = by_namespace.get(namespace, ())
            self.totals[namespace, start, end] += amount_within(new, Interval(start, end))
        self.new_beats.clear()
        self.changed_grants.clear()
        at_ms = max(cache.at_ms, history.newest_ms())
        self.table.mark_written(lambda name: history.budget(name, at_ms).budget.amount is not None, withheld)

    def forget(self, there: Container[str]) -> None:
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
        before = other.pop(session.uid, None) or mine.get(session.uid)
        mine[session.uid] = session
        self._index(session, before)

    def _index(self, session: Session, before: Session | None = None) -> None:
        if session.is_claim:
            self._index_users(session, before)
            count_claims(self.claims_milli, [(before, session)])
            self._count_drivers(session, before)
            uid = session.owner_uid
            if not session.is_over:
                self.running_claims[uid] = session.uid
            elif self.running_claims.get(uid) == session.uid:
                del self.running_claims[uid]
            return
        if session.charge == "reserved":
            _index_open(self.reserved, session)
        elif session.charge == "host" and session.settled_ms is None:
            self.of_host.add(session.uid)
        else:
            self.of_host.discard(session.uid)

    def claims_with(self, sessions: Mapping[str, Session]) -> Mapping[str, int]:
        """`claims_milli` once these sessions are written; the same object if none of them is of a claim."""
        changed = [(self.session(uid), each) for uid, each in sessions.items() if each.is_claim]
        if not changed:
            return self.claims_milli
        found = dict(self.claims_milli)
        count_claims(found, changed)
        return found

    def _count_drivers(self, session: Session, before: Session | None) -> None:
        if before is not None and held_by_claim(before) == held_by_claim(session):
            return  # the devices of an allocation do not change
        for sign, each in ((-1, before), (1, session)):
            for driver, milli in held_by_driver(each).items() if each else ():
                total = self.claimed_by_driver.get(driver, 0) + sign * milli
                self.claimed_by_driver[driver] = total

    def _index_users(self, session: Session, before: Session | None) -> None:
        was, now = (consumers_of(each) if each else () for each in (before, session))
        if now == was:
            return
        for uid in {*was, *now}:
            left = tuple(each for each in self.claim_users.get(uid, ()) if each != session.uid)
            mine = (*left, session.uid) if uid in now else left
            if mine:
                self.claim_users[uid] = mine
            else:
                self.claim_users.pop(uid, None)


def _index_open(index: dict[str, set[str]], session: Session) -> None:
    uid = session.owner_uid
    if session.settled_ms is None:
        index.setdefault(uid, set()).add(session.uid)
        return
    index.get(uid, set()).discard(session.uid)
    if not index.get(uid):
        index.pop(uid, None)


def count_claims(totals: dict[str, int], changed: Iterable[tuple[Session | None, Session]]) -> None:
    """Count these changes of sessions of claims, each with the session before it, into what claims hold."""
    for before, session in changed:
        more = held_by_claim(session) - (held_by_claim(before) if before else 0)
        left = totals.get(session.namespace, 0) + more
        if left:
            totals[session.namespace] = left
        else:
            totals.pop(session.namespace, None)


def read_ledger_state(store: Store, only_meter: bool = False) -> LedgerState:
    """The database's content at one moment. The standings document is published anew, because its digest is
    not stored. Entries are parsed after the transaction: there may be thousands."""
    rows: Mapping[str, AccountRow] = {}
    with store.reading() as connection:
        entries = tuple(reading.entries(connection))
        found = reading.unsettled(connection)
        declared = held_pods.declared(connection)
        ledger = LedgerState(
            history=history_of(()),
            errors=reading.entry_errors(connection),
            sessions=Table(found.sessions),
            posted=found.posted,
            beats=reading.beats(connection),
            watermarks=reading.watermarks(connection),
            gone=reading.gone_nodes(connection),
            leaseless=reading.leaseless_nodes(connection),
            namespaces=set(reading.namespaces(connection)),
            waiting=reading.waiting(connection),
            held={each.uid: each for each in held_pods.held(connection)},
            pulse=reading.pulse(connection) or NEVER,
        )
        with suppress(NotWrittenError):
            rows = accounts.with_use(connection)
    ledger.declared.add(declared)
    ledger.history = history_of(entries, only_meter=only_meter)
    ledger.fair = of_rows(rows, ledger.history)
    return ledger


LaterPeriods = dict[str, tuple[LaterPeriod, ...]]


class FutureHeadroom:
    """By namespace and group; computed anew when one of the statements that they follow from is."""

    def __init__(self) -> None:
        self._known: LaterPeriods = {}
        self._of: tuple[object, ...] = ()

    def of(
        self, ledger: LedgerState, statements: Statements, namespaces: Iterable[str], now_ms: int
    ) -> LaterPeriods:
        """Those that held pods may use that declare their time and have not reserved it."""
        longest: dict[str, int] = {}
        for pod in ledger.without_node.held.values():
            if pod.length_ms and pod.uid not in ledger.declared.rows:
                group = ledger.history.group(pod.namespace, now_ms)
                for subject in (pod.namespace, GROUP + group) if group else (pod.namespace,):
                    longest[subject] = max(longest.get(subject, 0), pod.length_ms)
        if not longest:
            self._known, self._of = {}, ()
            return {}
        follows_from = (statements, ledger.history, now_ms // _AGAIN_MS, longest)
        if self._of and self._of[0] is statements and self._of[1:] == follows_from[1:]:
            return self._known
        names = {*namespaces, *ledger.declared.namespaces(), *ledger.table.namespaces()}

        def reserved(name: str) -> Iterator[HeldAmount]:
            yield from ledger.declared.amounts(name)
            for rate_milli, start_ms, end_ms in ledger.table.declared_each(name):
                yield HeldAmount(rate_milli, Interval(start_ms, end_ms))

        self._known = {
            subject: future_headroom(
                ledger.history,
                subject,
                paying_namespaces(ledger.history, subject, names, now_ms),
                reserved,
                longest_ms,
                now_ms,
            )
            for subject, longest_ms in longest.items()
        }
        self._of = follows_from
        return self._known


_AGAIN_MS = 60_000  # the last period that a pod may use depends on the time


@dataclass(frozen=True, slots=True)
class DatabaseTotals:
    """The ledger's own totals (`totals.StoredTotals`). Each query is a short transaction of its own, because
    a decision can take seconds. They are consistent with each other, because only the settler posts."""

    store: Store

    def posted(self, parts: Iterable[Part]) -> dict[Part, int]:
        """What is posted in each part, in milli-GPU x ms."""
        with self.store.reading() as connection:
            return reading.posted_of(connection, parts)

    def granted(self, keys: Iterable[AccountKey]) -> dict[AccountKey, GrantSums]:
        """The grants of each account."""
        with self.store.reading() as connection:
            return reading.granted_of(connection, keys)

    def charges_since(self, names: Sequence[str], since_ms: int) -> list[tuple[str, Interval, float]]:
        """What is posted of these namespaces since then."""
        with self.store.reading() as connection:
            return list(reading.charges_since(connection, names, since_ms))

    def last_granted(self, before_ms: int) -> dict[str, Interval]:
        """Each subject's latest account that ended by then and has a grant, as a span."""
        with self.store.reading() as connection:
            return reading.last_granted(connection, before_ms)

    def posted_by_pods(self, namespace: str, span: Interval) -> list[selected_use.PodsAmount]:
        """What is posted of the namespace inside the span: controller, labels as JSON, and amount."""
        with self.store.reading() as connection:
            return selected_use.posted_by_pods(connection, namespace, span)


def read_grants(connection: Connection, before: GrantCache, mark: tuple[int, int], now_ms: int) -> GrantCache:
    """The grants of the accounts that have not ended, and of those of ``before`` that have. They are read
    again when a grant was added, which ``mark`` says (`store.ledger.GRANTS_MARK`), and when the clock was set
    back (an ended account may be open again)."""
    if mark == before.mark and now_ms >= before.at_ms:
        return before
    now = reading.granted(connection, now_ms)
    return GrantCache(mark, now_ms, now, reading.granted_of(connection, before.ended))
