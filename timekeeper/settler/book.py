"""The ledger as the settler knows it: what stands in the database, so that a tick writes only what
differs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.balance import Held
from timekeeper.accounts.changes import NEVER, Changes, Pulse
from timekeeper.accounts.history import History, history_of
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session, evidence
from timekeeper.accounts.standings import Published
from timekeeper.core.ledger import Interval
from timekeeper.store import reading
from timekeeper.store.engine import Connection

AccountKey = reading.AccountKey


@dataclass(slots=True)
class Book:
    """``sessions``: those that are not settled; ``settled``: those that are, whose pod is still there.

    ``totals``: what is posted in each account that was asked for. It grows by what is posted here, and is
    read anew at every start; a test holds it against the sum.
    """

    history: History
    errors: dict[str, str]
    sessions: dict[str, Session]
    posted: dict[str, tuple[Posting, ...]]
    beats: dict[str, int]
    watermarks: dict[str, int]
    namespaces: set[str]
    waiting: dict[str, int]
    published: Published | None = None
    settled: dict[str, Session] = field(default_factory=dict)
    totals: dict[AccountKey, int] = field(default_factory=dict)
    standings: dict[str, str] = field(default_factory=dict)
    pulse: Pulse = NEVER

    def session(self, uid: str) -> Session | None:
        """The pod's session, settled or not."""
        return self.sessions.get(uid) or self.settled.get(uid)

    def held(self, session: Session, watermark_ms: int | None) -> Held:
        """A session with all that is known of it; ``watermark_ms`` is its node's."""
        known = evidence(session, watermark_ms, self.beats.get(session.uid))
        return Held(session, known, self.posted.get(session.uid, ()))

    def recall(self, found: reading.Sessions) -> None:
        """Take in sessions that were read again, because their pods are there."""
        for uid, session in found.sessions.items():
            table = self.sessions if session.settled_ms is None else self.settled
            table[uid] = session
        self.posted.update(found.posted)

    def merge(self, changes: Changes, history: History) -> None:
        """Take in what was written."""
        self.history = history
        self.errors = dict(changes.errors) if changes.errors is not None else self.errors
        self.waiting = dict(changes.waiting) if changes.waiting is not None else self.waiting
        self.published = changes.published or self.published
        self.pulse = changes.pulse or self.pulse
        self.watermarks.update(changes.watermarks)
        for session in (*changes.opened, *changes.changed):
            self._keep(session)
        for posting in changes.postings:
            self.posted[posting.session_uid] = (*self.posted.get(posting.session_uid, ()), posting)
        for key in self.totals:
            self.totals[key] += posted_in(changes.postings, key)

    def forget(self, there: Mapping[str, object]) -> None:
        """Let go of settled sessions whose pods are gone: nothing can be said of them any more."""
        for uid in [uid for uid in self.settled if uid not in there]:
            del self.settled[uid]
            self.posted.pop(uid, None)
            self.beats.pop(uid, None)

    def _keep(self, session: Session) -> None:
        self.namespaces.add(session.namespace)
        mine, other = self.sessions, self.settled
        if session.settled_ms is not None:
            mine, other = other, mine
        other.pop(session.uid, None)
        mine[session.uid] = session


def posted_in(postings: tuple[Posting, ...], key: AccountKey) -> int:
    """What these postings add to an account."""
    namespace, start, end = key
    return amount_within((each for each in postings if each.namespace == namespace), Interval(start, end))


def read_book(connection: Connection) -> Book:
    """The book as the database has it. The standings are published anew, for their gist is not kept."""
    found = reading.unsettled(connection)
    return Book(
        history=history_of(reading.entries(connection)),
        errors=reading.entry_errors(connection),
        sessions=found.sessions,
        posted=found.posted,
        beats=reading.beats(connection),
        watermarks=reading.watermarks(connection),
        namespaces=set(reading.namespaces(connection)),
        waiting=reading.waiting(connection),
        pulse=reading.pulse(connection) or NEVER,
    )
