"""What a session owes by its evidence, said a second time.

It shares nothing with what the settler reckons with (`core.ledger.witnessed`), so that a fault there is seen
here. Design D3: proof goes before estimates, and where there is none the charge ends at the last evidence.
"""

from dataclasses import dataclass

from timekeeper.store.queries.audit_rows import StoredSession

NOBODY_KNOWS = 0


@dataclass(frozen=True, slots=True)
class Owed:
    """The time that a settled session is charged for; empty where both ends are the same."""

    from_ms: int
    to_ms: int


NOTHING = Owed(0, 0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What was posted of a session that is not settled begins no earlier and no later than ``earliest_ms``
    and ``latest_ms``, and ends no later than ``until_ms``."""

    earliest_ms: int
    latest_ms: int
    until_ms: int


def owed(session: StoredSession, beat_ms: int | None, posted_until_ms: int | None) -> Owed:
    """What a settled session is charged for, to the millisecond.

    Where no timestamp tells the end, that is the last evidence. It may have been one of several heartbeats,
    of which only the last is kept, so what was posted decides between those (``posted_until_ms``; None where
    nothing ever was: the first release charged nothing for such a hold).
    """
    begin, end = _begin_ms(session), _end_ms(session)
    if session.ended_ms == 0 and posted_until_ms is not None:
        least = max(
            session.bound_ms, session.started_ms or NOBODY_KNOWS, session.watermark_ms or NOBODY_KNOWS
        )
        end = max(least, min(posted_until_ms, beat_ms or NOBODY_KNOWS))
    grace_is_open = session.started_ms is None and session.charge_from == "running"
    if end is None or (grace_is_open and begin > (session.settled_ms or 0)):
        return NOTHING
    return Owed(begin, end) if end > begin else NOTHING


def bounds(session: StoredSession, beat_ms: int | None, heard_ms: int | None, posted_ms: int) -> Bounds:
    """The most that can have been posted of a session that is not settled.

    ``heard_ms``: until when its node was heard; ``posted_ms``: when it was posted last. A pod that had left
    and came back has lost the evidence of its leaving, but no estimate ever reaches beyond its own writing.
    """
    begin = _begin_ms(session)
    latest = session.bound_ms + (session.start_grace_ms if session.charge_from == "running" else 0)
    is_over = session.ended_ms is not None or session.vanished_ms is not None
    heard = session.watermark_ms if is_over else heard_ms
    known = [begin, beat_ms or NOBODY_KNOWS, heard or NOBODY_KNOWS, session.ended_ms or NOBODY_KNOWS]
    if session.vanished_ms is not None:
        known.append(session.vanished_ms + session.grace_ms)
    if not is_over and session.watermark_ms is not None:
        known.append(posted_ms)
    return Bounds(min(begin, latest), latest, max(known))


def _begin_ms(session: StoredSession) -> int:
    """From bind, or from the first start, which is taken to be at the latest a grace after bind."""
    if session.charge_from == "bound":
        return session.bound_ms
    in_time = session.bound_ms + session.start_grace_ms
    if session.started_ms is not None and session.started_ms < in_time:
        return session.started_ms
    return in_time


def _end_ms(session: StoredSession) -> int | None:
    """The kubelet's word, else the end of the grace of a pod that left; None where nothing tells."""
    if session.ended_ms is None:
        return None if session.vanished_ms is None else session.vanished_ms + session.grace_ms
    return session.ended_ms if session.ended_ms > 0 else None
