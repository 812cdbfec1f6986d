"""Which open sessions a tick must recompute, and the postings that are then due."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from timekeeper.accounts.balance import UnsettledSession
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.posting import Posting, amount_within, still_to_post
from timekeeper.accounts.session import Session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.metering import Interval, WitnessedInterval
from timekeeper.settler.state.ledger_state import LedgerState

_BY_PROOF = "the kubelet's timestamps"
_BY_EVIDENCE = "the last evidence"
_RESERVED = "hold"
_RELEASED = "the claim's release"


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


def begin(ledger: LedgerState, settings: BudgetSettings, now_ms: int) -> bool:
    """Prepare the open-session totals for a tick. Returns True if every session is recomputed: at the start,
    after a tick that was not written, if the clock was set back, and if ``settleAfter`` changed."""
    totals = ledger.open_totals
    is_rebuilt = (
        not totals.is_whole or now_ms < totals.at_ms or settings.settle_after_ms != totals.settle_after_ms
    )
    if is_rebuilt:
        totals = ledger.open_totals = totals.rebuilding(settings.settle_after_ms)
        for session in ledger.sessions.values():
            totals.index_node(session)
    totals.at_ms, totals.is_whole = now_ms, False
    return is_rebuilt


def settle_due(
    ledger: LedgerState,
    changed: Mapping[str, Session],
    watermarks: Mapping[str, int],
    history: History,
    now_ms: int,
) -> Settlement:
    """Bring the totals up to now. ``changed``: sessions that were opened or changed; ``watermarks``: those
    that advanced."""
    totals, settle_after_ms = ledger.open_totals, ledger.open_totals.settle_after_ms
    postings: list[Posting] = []
    settled: dict[str, Session] = {}
    for uid in _to_recompute(ledger, changed, watermarks, now_ms):
        session = changed.get(uid) or ledger.sessions.get(uid)
        if session is None:
            continue
        open_session = ledger.unsettled(
            session, watermarks.get(session.witness, ledger.watermarks.get(session.witness))
        )
        witnessed = open_session.witnessed(now_ms)
        if _is_due(witnessed, settle_after_ms, now_ms) or _is_posted_before(open_session):
            new = _postings(open_session, witnessed, history, now_ms)
            postings += new
            open_session = replace(open_session, posted=(*open_session.posted, *new))
            if witnessed.closed:
                settled[uid] = replace(session, settled_ms=now_ms)
        totals.put(open_session, witnessed, now_ms)
        if uid in settled:
            totals.remove(open_session, witnessed)
    totals.finish_rebuild()
    return Settlement(tuple(postings), settled)


def _to_recompute(
    ledger: LedgerState, changed: Mapping[str, Session], watermarks: Mapping[str, int], now_ms: int
) -> Iterator[str]:
    """The sessions to recompute in full. For other sessions with new evidence only the end moves."""
    totals = ledger.open_totals
    if not len(totals):
        yield from {**ledger.sessions, **changed}
        return
    found = {**dict.fromkeys(totals.due(now_ms)), **dict.fromkeys(changed)}
    for uid, until_ms in _extended(ledger, watermarks):
        if uid not in found and not totals.extend(uid, until_ms, now_ms):
            found[uid] = None
    yield from found


def _extended(ledger: LedgerState, watermarks: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Sessions with new evidence, and until when it reaches."""
    beats, by_node = ledger.beats, ledger.open_totals.by_node
    for node, at_ms in watermarks.items():
        for uid in by_node.get(node, ()):
            yield uid, max(beats.get(uid, 0), at_ms)
    for uid in ledger.new_beats:
        session = ledger.sessions.get(uid)
        if session is not None:
            mark = watermarks.get(session.witness, ledger.watermarks.get(session.witness, 0))
            yield uid, max(beats[uid], mark)


def _is_due(witnessed: WitnessedInterval, settle_after_ms: int, now_ms: int) -> bool:
    """Whether to post: at once on proof; on estimates after ``settleAfter`` without evidence. A session whose
    pod may still prove something stays open, even after such a posting."""
    silent = now_ms - witnessed.interval.end_ms >= settle_after_ms and witnessed.interval.length_ms > 0
    return witnessed.proven or silent or (witnessed.closed and not witnessed.interval.length_ms)


def _is_posted_before(open_session: UnsettledSession) -> bool:
    """Whether time before the session's beginning is posted for it: that was the pod's life before."""
    before = Interval(0, open_session.session.bound_ms)
    return bool(open_session.posted) and amount_within(open_session.posted, before) != 0


def _postings(
    open_session: UnsettledSession, witnessed: WitnessedInterval, history: History, now_ms: int
) -> tuple[Posting, ...]:
    session = open_session.session
    reason = _BY_PROOF if witnessed.proven else _BY_EVIDENCE
    if session.is_reserved:
        reason = _RESERVED
    elif session.is_claim and witnessed.proven:
        reason = _RELEASED

    def pieces(interval: Interval) -> Iterable[Interval]:
        return history.pieces(session.namespace, interval)

    return still_to_post(session, open_session.posted, witnessed.interval, pieces, reason, now_ms)
