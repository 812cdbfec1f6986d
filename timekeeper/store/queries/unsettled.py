"""The charge of an unsettled session in SQL: `core.ledger.metering.witnessed` a second time, for reports that
the database adds up."""

from typing import Any

from sqlalchemy import ColumnElement, case, func, literal, or_, select

from timekeeper.store.engine.schema import HEARTBEATS, NODES, SESSIONS

Expression = ColumnElement[Any]

_LATEST = func.max(HEARTBEATS.c.beat_ms).label("beat_ms")
_OPEN = select(SESSIONS.c.uid).where(SESSIONS.c.settled_ms.is_(None))
_BEATS = (
    select(HEARTBEATS.c.session_uid, _LATEST)
    .where(HEARTBEATS.c.session_uid.in_(_OPEN))
    .group_by(HEARTBEATS.c.session_uid)
    .subquery("beats")
)
# Sessions joined with the evidence outside their row: their node's watermark and their latest heartbeat.
KNOWN = SESSIONS.outerjoin(NODES, NODES.c.name == SESSIONS.c.node).outerjoin(
    _BEATS, _BEATS.c.session_uid == SESSIONS.c.uid
)


def due(now_ms: int) -> tuple[Expression, Expression]:
    """``witnessed`` as SQL: the start and end of the charged interval now. NULL, or an end not after the
    start, means no charge. Select from `KNOWN`.

    A test compares both for arbitrary evidence.
    """
    its, latest = SESSIONS.c, SESSIONS.c.bound_ms + SESSIONS.c.start_grace_ms
    start = case(
        (its.charge_from == "bound", its.bound_ms),
        (its.started_ms.is_not(None), least(its.started_ms, latest)),
        (latest <= now_ms, latest),
    )
    is_over = or_(its.ended_ms.is_not(None), its.vanished_ms.is_not(None))
    heard = func.coalesce(case((is_over, its.watermark_ms), else_=NODES.c.watermark_ms), 0)
    seen = greatest(func.coalesce(_BEATS.c.beat_ms, 0), heard)
    last = greatest(its.bound_ms, greatest(func.coalesce(its.started_ms, 0), seen))
    end = case(
        (its.ended_ms == 0, last),
        (its.ended_ms.is_not(None), its.ended_ms),
        (its.vanished_ms.is_not(None), least(its.vanished_ms + its.grace_ms, literal(now_ms))),
        else_=least(literal(now_ms), seen),
    )
    return start, end


def least(one: Expression, other: Expression) -> Expression:
    """The smaller of two values, on every database."""
    return case((one < other, one), else_=other)


def greatest(one: Expression, other: Expression) -> Expression:
    """The larger of two values, on every database."""
    return case((one > other, one), else_=other)
