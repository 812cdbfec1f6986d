"""Which sessions open, and what the cluster has proved of those that are open."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import (
    OpenedSession,
    Session,
    evidence,
    open_session,
    vanish,
    vanish_unseen,
    witness,
)
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.settler.cluster.cluster_state import ClusterState, DeletedPod
from timekeeper.settler.state.ledger_state import LedgerState

# A pod may be heard of before its node: the watches are not one. Its rate waits this long for the inventory.
PATIENCE_MS = 5_000

_LONGEST_UNMARKED_MS = 5_000


@dataclass(slots=True)
class SessionChanges:
    """``sessions``: the new and the changed ones by UID, ``opened`` the new among them; ``deferred``: pods
    that wait for their node's inventory; ``doubts``: why a session is charged by its request."""

    sessions: dict[str, Session] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    deferred: dict[str, int] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)

    def open(self, opened: OpenedSession) -> Session:
        """Take the new session in."""
        session = opened.session
        self.sessions[session.uid] = session
        self.opened.add(session.uid)
        if opened.doubt:
            self.doubts[session.uid] = opened.doubt
        return session


def changed_sessions(
    world: ClusterState, book: LedgerState, settings: BudgetSettings, now_ms: int
) -> SessionChanges:
    """The sessions of every pod that was heard of since the last tick."""
    moved = SessionChanges()
    for uid, since_ms in world.touched.items():
        _look_at(world, book, settings, now_ms, moved, world.pods[uid], since_ms)
    for gone in world.gone.values():
        _end(world, book, settings, now_ms, moved, gone)
    _let_go(world, book, moved)
    if world.relisted:
        for session in _missing(world, book):
            known = evidence(session, book.watermarks.get(session.node), book.beats.get(session.uid))
            moved.sessions[session.uid] = _at_rest(vanish_unseen(session, known), known.watermark_ms)
    return moved


def _look_at(
    world: ClusterState,
    book: LedgerState,
    settings: BudgetSettings,
    now_ms: int,
    moved: SessionChanges,
    pod: LedgerPod,
    since_ms: int,
) -> None:
    """A pod that is there: opens its session once it is bound and its cards are known, then proves."""
    session = book.session(pod.uid)
    if session is None:
        if not pod.node or pod.ended_ms == 0 or pod.uid in book.folded:
            return
        opened = open_session(pod, world.cards(pod.node), settings, now_ms)
        if opened.doubt and pod.devices and now_ms - since_ms < PATIENCE_MS:
            moved.deferred[pod.uid] = since_ms
            return
        session = moved.open(opened)
    _prove(world, book, moved, session, pod, now_ms)


def _end(
    world: ClusterState,
    book: LedgerState,
    settings: BudgetSettings,
    now_ms: int,
    moved: SessionChanges,
    gone: DeletedPod,
) -> None:
    """A pod whose object went: by its last status where that is terminal, else as one that vanished."""
    pod, session = gone.pod, book.session(gone.pod.uid)
    if session is None:
        if pod.ended_ms == 0 or pod.uid in book.folded:
            return
        session = moved.open(open_session(pod, world.cards(pod.node), settings, now_ms))
    if session.vanished_ms is not None and pod.ended_ms is None:
        return  # told once more: the first time counts
    session = _prove(world, book, moved, session, pod, now_ms)
    if session.is_over:
        return
    watermark_ms = _later(gone.watermark_ms, book.watermarks.get(pod.node))
    known = evidence(session, watermark_ms, book.beats.get(pod.uid))
    if gone.seen:
        most_grace_ms = settings.max_grace_period_ms
        session = vanish(session, pod.grace_ms, gone.at_ms, known, gone.lease_ms, most_grace_ms)
    else:
        session = vanish_unseen(session, known)
    moved.sessions[pod.uid] = _at_rest(session, known.watermark_ms)


def _let_go(world: ClusterState, book: LedgerState, moved: SessionChanges) -> None:
    """Pods that were deleted by force, and that their nodes have seen gone since: their grace ends then."""
    presence = world.presence
    ends = dict(presence.left)
    # those among them that vanish in this tick: all may have been heard since the last one
    for uid, each in chain(book.sessions.items(), moved.sessions.items()) if presence.looked else ():
        look = presence.looked.get(each.node)
        is_older = look and each.vanished_ms is not None and each.vanished_ms <= look.booted_ms
        if look and is_older and uid not in look.there:
            ends.setdefault(uid, look.at_ms)
    for uid, at_ms in ends.items():
        session = moved.sessions.get(uid) or book.session(uid)
        if session is None or session.vanished_ms is None or session.settled_ms is not None:
            continue
        if 0 <= at_ms - session.vanished_ms < session.grace_ms:
            moved.sessions[uid] = replace(session, grace_ms=at_ms - session.vanished_ms)


def _prove(
    world: ClusterState,
    book: LedgerState,
    moved: SessionChanges,
    session: Session,
    pod: LedgerPod,
    now_ms: int,
) -> Session:
    proved = witness(session, pod, now_ms)
    if proved.is_over and not session.is_over:
        # as the end was heard: later the node speaks of others, and no longer of this pod
        proved = _at_rest(proved, _later(book.watermarks.get(session.node), world.marks.get(pod.uid)))
    if proved != session:
        # what was settled is settled anew, by a correction
        proved = moved.sessions[pod.uid] = replace(proved, settled_ms=None)
    return proved


def _at_rest(session: Session, watermark_ms: int | None) -> Session:
    """A session that is over keeps its node's watermark as it is then, whatever the node does later."""
    return replace(session, watermark_ms=watermark_ms)


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _missing(world: ClusterState, book: LedgerState) -> Iterator[Session]:
    """Sessions that run by the ledger, whose pods a whole list did not have."""
    for uid, session in book.sessions.items():
        if not session.is_over and uid not in world.pods and uid not in world.gone:
            yield session


def advanced_watermarks(world: ClusterState, book: LedgerState, now_ms: int) -> dict[str, int]:
    """The watermarks that have moved, of the nodes that sessions run on. They never move back.

    In a large cluster they move together every few seconds: kubelets renew their Leases every ten, and each
    move of thousands writes the whole table.
    """
    nodes, watermarks = book.tally.by_node, book.watermarks
    if 0 <= now_ms - book.marked_ms < min(_LONGEST_UNMARKED_MS, len(nodes) // 1000 * 1000):
        return {}
    heard = ((node, world.watermark_ms(node)) for node in nodes)
    return {node: at_ms for node, at_ms in heard if at_ms is not None and at_ms > watermarks.get(node, 0)}
