"""The charge of an unsettled session in SQL: `core.ledger.metering.witnessed` a second time, for reports that
the database adds up."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Join, Select, Subquery, case, func, literal, or_, select

from timekeeper.store.engine.schema import HEARTBEATS, NODES, SESSIONS

Expression = ColumnElement[Any]


def latest_beats(uids: Sequence[str] | Select[Any]) -> Subquery:
    """The latest heartbeat of each of these sessions."""
    latest = func.max(HEARTBEATS.c.beat_ms).label("beat_ms")
    found = select(HEARTBEATS.c.session_uid, latest).where(HEARTBEATS.c.session_uid.in_(uids))
    return found.group_by(HEARTBEATS.c.session_uid).subquery("beats")


def known(beats: Subquery) -> Join:
    """Sessions joined with the evidence outside their row: their node's watermark and their latest
    heartbeat."""
    with_nodes = SESSIONS.outerjoin(NODES, NODES.c.name == SESSIONS.c.node)
    return with_nodes.outerjoin(beats, beats.c.session_uid == SESSIONS.c.uid)


_OPEN_BEATS = latest_beats(select(SESSIONS.c.uid).where(SESSIONS.c.settled_ms.is_(None)))
KNOWN = known(_OPEN_BEATS)


def due(now_ms: int, beats: Subquery = _OPEN_BEATS) -> tuple[Expression, Expression]:
    """``witnessed`` as SQL: the start and end of the charged interval now. NULL, or an end not after the
    start, means no charge. Select from `known` of these heartbeats; by default from `KNOWN`.

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
    seen = greatest(func.coalesce(beats.c.beat_ms, 0), heard)
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
