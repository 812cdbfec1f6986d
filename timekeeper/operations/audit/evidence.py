"""A session's charge by its evidence, computed a second time.

It shares no code with the settler's `core.ledger.metering.witnessed`, so a fault there shows here:
proof precedes estimates; without proof the charge ends at the last evidence.
"""

from dataclasses import dataclass

from timekeeper.store.audit_rows import StoredSession

NOBODY_KNOWS = 0


@dataclass(frozen=True, slots=True)
class Owed:
    """The charged interval of a settled session; empty if both ends are equal."""

    from_ms: int
    to_ms: int


NOTHING = Owed(0, 0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """An unsettled session's postings begin at ``begin_ms`` and end by ``until_ms``."""

    begin_ms: int
    until_ms: int


def owed(session: StoredSession, beat_ms: int | None, posted_until_ms: int | None) -> Owed:
    """The charge of a settled session, to the millisecond.

    If no timestamp says when it ended, the charge ends at the last evidence. That may have been one of
    several heartbeats, of which only the last is stored, so the posted end decides among them
    (``posted_until_ms``; None if nothing was posted).
    """
    begin, end = session.bound_ms, _end_ms(session)
    if session.ended_ms == 0 and posted_until_ms is not None:
        least = max(
            session.bound_ms, session.started_ms or NOBODY_KNOWS, session.watermark_ms or NOBODY_KNOWS
        )
        end = max(least, min(posted_until_ms, beat_ms or NOBODY_KNOWS))
    return NOTHING if end is None or end <= begin else Owed(begin, end)


def bounds(session: StoredSession, beat_ms: int | None, heard_ms: int | None, posted_ms: int) -> Bounds:
    """The most that can be posted for an unsettled session.

    ``heard_ms``: its node's watermark; ``posted_ms``: its last posting. A pod that vanished and returned has
    lost the evidence of its absence, but no estimate reaches beyond its own writing.
    """
    begin = session.bound_ms
    is_over = session.ended_ms is not None or session.vanished_ms is not None
    heard = session.watermark_ms if is_over else heard_ms
    known = [begin, beat_ms or NOBODY_KNOWS, heard or NOBODY_KNOWS, session.ended_ms or NOBODY_KNOWS]
    if session.vanished_ms is not None:
        known.append(session.vanished_ms + session.grace_ms)
    if not is_over and session.watermark_ms is not None:
        known.append(posted_ms)
    return Bounds(begin, max(known))


def _end_ms(session: StoredSession) -> int | None:
    """The kubelet's timestamp, else the end of a vanished pod's grace; None without either."""
    if session.ended_ms is None:
        return None if session.vanished_ms is None else session.vanished_ms + session.grace_ms
    return session.ended_ms if session.ended_ms > 0 else None
