"""The ledger as the settler knows it: what stands in the database, so that a tick writes only what
differs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.balance import UnsettledSession
from timekeeper.accounts.budget_history import History, history_of
from timekeeper.accounts.changes import NEVER, Changes, Pulse
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session, evidence
from timekeeper.accounts.standings import EntryCache, StandingsDocument
from timekeeper.accounts.statements import Part
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.open_session_totals import OpenSessionTotals
from timekeeper.settler.state.statement_cache import StatementCache
from timekeeper.settler.state.totals import GrantCache
from timekeeper.settler.state.unbound_pods import UnboundPods
from timekeeper.store.engine.engine import Store
from timekeeper.store.queries import ledger as reading


@dataclass(slots=True)
class LedgerState:
    """``sessions``: those that are not settled; ``settled``: those that are, whose pod is still there;
    ``folded``: pods that are still there and whose sessions were folded.

    ``totals``: what is posted in each account that was asked for. It grows by what is posted here, and is
    read anew at every start; a test holds it against the sum. ``tally``, ``waits``, ``grants`` and ``kept``
    are sums and statements that are kept from tick to tick. ``heard_beats``: sessions with a later heartbeat
    than the tally knows; ``regranted``: subjects whose grants are others than ``kept`` knows; ``ranks``:
    which priority classes the standings document knows; ``entries``: those of the document, encoded;
    ``marked_ms``: when watermarks were last moved.
    """

    history: History
    errors: dict[str, str]
    sessions: dict[str, Session]
    posted: dict[str, tuple[Posting, ...]]
    beats: dict[str, int]
    watermarks: dict[str, int]
    namespaces: set[str]
    waiting: dict[str, int]
    published: StandingsDocument | None = None
    settled: dict[str, Session] = field(default_factory=dict)
    folded: set[str] = field(default_factory=set)
    totals: dict[Part, int] = field(default_factory=dict)
    standings: dict[str, str] = field(default_factory=dict)
    pulse: Pulse = NEVER
    tally: OpenSessionTotals = field(default_factory=OpenSessionTotals)
    waits: UnboundPods = field(default_factory=UnboundPods)
    grants: GrantCache = field(default_factory=GrantCache)
    kept: StatementCache | None = None
    heard_beats: set[str] = field(default_factory=set)
    regranted: set[str] = field(default_factory=set)
    ranks: int = 0
    entries: EntryCache = field(default_factory=EntryCache)
    marked_ms: int = 0

    def session(self, uid: str) -> Session | None:
        """The pod's session, settled or not."""
        return self.sessions.get(uid) or self.settled.get(uid)

    def held(self, session: Session, watermark_ms: int | None) -> UnsettledSession:
        """A session with all that is known of it; ``watermark_ms`` is its node's."""
        known = evidence(session, watermark_ms, self.beats.get(session.uid))
        return UnsettledSession(session, known, self.posted.get(session.uid, ()))

    def recall(self, found: reading.Sessions) -> None:
        """Take in sessions that were read again, because their pods are there."""
        for uid, session in found.sessions.items():
            table = self.sessions if session.settled_ms is None else self.settled
            table[uid] = session
            self.tally.is_whole &= session.settled_ms is not None
        self.posted.update(found.posted)
        self.folded |= found.folded

    def merge(self, changes: Changes, history: History, kept: StatementCache) -> None:
        """Take in what was written."""
        self.history, self.kept = history, kept
        self.errors = dict(changes.errors) if changes.errors is not None else self.errors
        self.waiting = self.waits.rates
        self.published = changes.published or self.published
        self.pulse = changes.pulse or self.pulse
        self.watermarks.update(changes.watermarks)
        self.marked_ms = self.pulse.decided_ms if changes.watermarks else self.marked_ms
        for session in (*changes.opened, *changes.changed):
            self._keep(session)
        by_namespace: dict[str, list[Posting]] = {}
        for posting in changes.postings:
            self.posted[posting.session_uid] = (*self.posted.get(posting.session_uid, ()), posting)
            by_namespace.setdefault(posting.namespace, []).append(posting)
        for namespace, start, end in self.totals if by_namespace else ():
            new = by_namespace.get(namespace, ())
            self.totals[namespace, start, end] += amount_within(new, Interval(start, end))
        self.heard_beats.clear()
        self.regranted.clear()
        at_ms = max(kept.at_ms, history.newest_ms())
        self.tally.written(lambda name: history.budget(name, at_ms).budget.amount is not None)

    def forget(self, there: Mapping[str, object]) -> None:
        """Let go of settled sessions whose pods are gone: nothing can be said of them any more."""
        for uid in [uid for uid in self.settled if uid not in there]:
            del self.settled[uid]
            self.posted.pop(uid, None)
            self.beats.pop(uid, None)
        self.folded = {uid for uid in self.folded if uid in there}

    def _keep(self, session: Session) -> None:
        self.namespaces.add(session.namespace)
        mine, other = self.sessions, self.settled
        if session.settled_ms is not None:
            mine, other = other, mine
        other.pop(session.uid, None)
        mine[session.uid] = session


def read_ledger_state(store: Store) -> LedgerState:
    """The book as the database has it, of one moment. The standings are published anew, for their gist is not
    kept; thousands of entries are parsed once the transaction is over."""
    with store.reading() as connection:
        entries = reading.entries(connection)
        found = reading.unsettled(connection)
        book = LedgerState(
            history=history_of(()),
            errors=reading.entry_errors(connection),
            sessions=found.sessions,
            posted=found.posted,
            beats=reading.beats(connection),
            watermarks=reading.watermarks(connection),
            namespaces=set(reading.namespaces(connection)),
            waiting=reading.waiting(connection),
            pulse=reading.pulse(connection) or NEVER,
        )
    book.history = history_of(entries)
    return book
