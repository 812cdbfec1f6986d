"""Which open sessions a tick has to look at, and the postings that are then due."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from timekeeper.accounts.balance import UnsettledSession
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.posting import Posting, still_to_post
from timekeeper.accounts.session import Session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.metering import Interval, WitnessedInterval
from timekeeper.settler.state.ledger_state import LedgerState

_BY_PROOF = "the kubelet's timestamps"
_BY_EVIDENCE = "the last evidence"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The postings that are due, and the sessions that are settled by them."""

    postings: tuple[Posting, ...]
    settled: Mapping[str, Session]

    def by_namespace(self) -> dict[str, tuple[Posting, ...]]:
        """The postings of each namespace."""
        found: dict[str, list[Posting]] = {}
        for posting in self.postings:
            found.setdefault(posting.namespace, []).append(posting)
        return {namespace: tuple(each) for namespace, each in found.items()}


def begin(book: LedgerState, settings: BudgetSettings, now_ms: int) -> bool:
    """Make the tally ready for a tick. True where every session is to be counted anew: at the start, after a
    tick that was not written, where the clock was turned back, and where silence is another span."""
    tally = book.tally
    is_anew = not tally.is_whole or now_ms < tally.at_ms or settings.settle_after_ms != tally.settle_after_ms
    if is_anew:
        tally = book.tally = tally.anew(settings.settle_after_ms)
        for session in book.sessions.values():
            tally.runs_on(session)
    tally.at_ms, tally.is_whole = now_ms, False
    return is_anew


def settle_due(
    book: LedgerState,
    moved: Mapping[str, Session],
    watermarks: Mapping[str, int],
    history: History,
    now_ms: int,
) -> Settlement:
    """Bring the tally to this moment. ``moved``: sessions that were opened or changed; ``watermarks``: the
    nodes' that moved."""
    tally, settle_after_ms = book.tally, book.tally.settle_after_ms
    postings: list[Posting] = []
    settled: dict[str, Session] = {}
    for uid in _whole(book, moved, watermarks, now_ms):
        session = moved.get(uid) or book.sessions.get(uid)
        if session is None:
            continue
        held = book.held(session, watermarks.get(session.node, book.watermarks.get(session.node)))
        seen = held.witnessed(now_ms)
        if _is_due(seen, settle_after_ms, now_ms):
            new = _postings(held, seen, history, now_ms)
            postings += new
            held = replace(held, posted=(*held.posted, *new))
            if seen.closed:
                settled[uid] = replace(session, settled_ms=now_ms)
        tally.put(held, seen, now_ms)
        if uid in settled:
            tally.settle(held, seen)
    tally.counted()
    return Settlement(tuple(postings), settled)


def _whole(
    book: LedgerState, moved: Mapping[str, Session], watermarks: Mapping[str, int], now_ms: int
) -> Iterator[str]:
    """The sessions to look at whole. Of the others that have new evidence, nothing but the end moves."""
    tally = book.tally
    if not len(tally):
        yield from {**book.sessions, **moved}
        return
    whole = {**dict.fromkeys(tally.due(now_ms)), **dict.fromkeys(moved)}
    for uid, until_ms in _extended(book, watermarks):
        if uid not in whole and not tally.extend(uid, until_ms, now_ms):
            whole[uid] = None
    yield from whole


def _extended(book: LedgerState, watermarks: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Sessions with new evidence, and until when there is any."""
    beats, by_node = book.beats, book.tally.by_node
    for node, at_ms in watermarks.items():
        for uid in by_node.get(node, ()):
            yield uid, max(beats.get(uid, 0), at_ms)
    for uid in book.heard_beats:
        session = book.sessions.get(uid)
        if session is not None:
            mark = watermarks.get(session.node, book.watermarks.get(session.node, 0))
            yield uid, max(beats[uid], mark)


def _is_due(seen: WitnessedInterval, settle_after_ms: int, now_ms: int) -> bool:
    """Whether to post: on proof at once; on estimates when nothing has been heard of the session for
    ``settleAfter``. A session whose pod may still prove something stays open, also after such a posting."""
    silent = now_ms - seen.interval.end_ms >= settle_after_ms and seen.interval.length_ms > 0
    return seen.proven or silent or (seen.closed and not seen.interval.length_ms)


def _postings(
    held: UnsettledSession, seen: WitnessedInterval, history: History, now_ms: int
) -> tuple[Posting, ...]:
    session = held.session
    reason = _BY_PROOF if seen.proven else _BY_EVIDENCE

    def pieces(interval: Interval) -> Iterable[Interval]:
        return history.pieces(session.namespace, interval)

    return still_to_post(session, held.posted, seen.interval, pieces, reason, now_ms)
