"""The charge for reserved cards: from when no other pod holds them until the waiting pod is bound or lets go.

Such a session has a UID of its own. The clock alone extends it, as the reservation keeps other pods off the
cards whether their node is heard or not, and it ends with the reservation at the latest.
"""

from dataclasses import replace

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import HOLD, Session, open_session
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.reservation import MAX_MS, Reservation
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Card

_LATE_MS = 86_400_000  # no session opens for a reservation that ended this long ago: it may be rolled up


def reserved_uid(pod: LedgerPod) -> str:
    """The UID of the session for the pod's reserved cards; "": the pod shows no free reserved cards."""
    reserved = pod.reserved
    return f"{pod.uid}{HOLD}{reserved.free_ms}" if reserved and reserved.free_ms is not None else ""


def open_reserved(
    pod: LedgerPod, cards: tuple[Card, ...], settings: BudgetSettings, now_ms: int
) -> Session | None:
    """The session for the reserved cards of a node with these cards, with a doubt if they cannot be the
    pod's: then nothing is charged, because a condition could be forged. None without free reserved cards."""
    span = _span(pod)
    if span is None or pod.reserved is None or span[1] < now_ms - _LATE_MS:
        return None
    placed = replace(pod, node=pod.reserved.node, devices=encode_placement(pod.reserved.placement))
    session = open_session(placed, NodeCards(cards), settings, now_ms)
    return replace(
        session,
        uid=reserved_uid(pod),
        charge="reserved",
        admitted_in_budget=False,  # the waiting pod reserves already
        bound_ms=span[0],
        vanished_ms=span[1],
    )


def end_reserved(session: Session, end_ms: int | None) -> Session:
    """The session ended then, if that is before its end so far."""
    if end_ms is None:
        return session
    until_ms, end_ms = session.ended_ms or session.vanished_ms or 0, max(end_ms, session.bound_ms)
    if end_ms >= until_ms:
        return session
    return replace(session, ended_ms=end_ms, vanished_ms=None, settled_ms=None)


def reserved_end_ms(uid: str, pod: LedgerPod, bound_ms: int | None, seen_ms: int) -> int | None:
    """When the pod was bound (``bound_ms``), let go of the cards of this session, or began to leave.
    ``seen_ms``: when the object was seen, for what it does not date. None: none of this has happened."""
    ends = [bound_ms, pod.hold.deletion_ms]
    if not pod.node and pod.ended_ms is not None:
        ends.append(pod.ended_ms or pod.hold.reported_ms or seen_ms)
    if pod.let_go_ms is not None:
        ends.append(pod.let_go_ms)
    elif reserved_uid(pod) != uid:
        ends.append(seen_ms if pod.reserved is None else min(seen_ms, pod.reserved.since_ms))
    return min((each for each in ends if each is not None), default=None)


def _span(pod: LedgerPod) -> tuple[int, int] | None:
    """From when the cards are free until the reservation ends."""
    reserved: Reservation | None = pod.reserved
    if reserved is None or reserved.free_ms is None:
        return None
    start_ms = max(reserved.free_ms, reserved.since_ms, pod.created_ms)
    is_true = start_ms < reserved.until_ms <= reserved.since_ms + MAX_MS
    return (start_ms, reserved.until_ms) if is_true else None
