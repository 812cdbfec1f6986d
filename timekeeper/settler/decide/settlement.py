"""What open sessions are charged for now, and the postings that are then due."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from timekeeper.accounts.balance import UnsettledSession
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.posting import Posting, still_to_post
from timekeeper.accounts.session import Session
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


def begin(ledger: LedgerState, now_ms: int) -> bool:
    """Prepare the table of open sessions for a tick. Returns True if every statement is made anew: at the
    start, after a tick that was not written, and if the clock was set back."""
    table = ledger.table
    is_again = not table.is_whole or now_ms < table.at_ms
    if not table.is_whole:
        table.restore(map(ledger.row_of, ledger.sessions.values()))
    table.is_whole = False
    return is_again


def settle_due(
    ledger: LedgerState,
    changed: Mapping[str, Session],
    watermarks: Mapping[str, int],
    history: History,
    settle_after_ms: int,
    now_ms: int,
) -> Settlement:
    """Bring the table up to now. ``changed``: sessions that were opened or changed; ``watermarks``: those
    that advanced. What is posted of a session: at once on proof; on estimates after ``settleAfter`` without
    evidence. One whose pod may still prove something stays open, even after such a posting."""
    table, beats = ledger.table, ledger.beats
    for session in changed.values():
        table.put(*ledger.row_of(session))
    table.hear({uid: beats[uid] for uid in ledger.new_beats}, watermarks, ledger.listed)
    postings: list[Posting] = []
    settled: dict[str, Session] = {}
    for uid in table.compute(now_ms, settle_after_ms):
        session = changed.get(uid) or ledger.sessions[uid]
        mark_ms = watermarks.get(session.witness, ledger.watermarks.get(session.witness))
        open_session = ledger.unsettled(session, mark_ms)
        witnessed = open_session.witnessed(now_ms)
        postings += _postings(open_session, witnessed, history, now_ms)
        if witnessed.closed:
            settled[uid] = replace(session, settled_ms=now_ms)
    table.post(postings)
    table.note_changes()
    return Settlement(tuple(postings), settled)


def _postings(
    open_session: UnsettledSession, witnessed: WitnessedInterval, history: History, now_ms: int
) -> tuple[Posting, ...]:
    session = open_session.session
    reason = _BY_PROOF if witnessed.proven else _BY_EVIDENCE
    if session.charge == "reserved":
        reason = _RESERVED
    elif session.is_claim and witnessed.proven:
        reason = _RELEASED

    def pieces(interval: Interval) -> Iterable[Interval]:
        return history.pieces(session.namespace, interval)

    return still_to_post(session, open_session.posted, witnessed.interval, pieces, reason, now_ms)
