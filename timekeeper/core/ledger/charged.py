"""Until when sessions are charged, as of a moment: `metering.witnessed` for many at once, over columns.

The operations are given, so that numpy's arrays and the columns of a SQL statement are computed alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NEVER = -1
"""In a column of moments: there is none."""


@dataclass(frozen=True, slots=True)
class EvidenceColumns:
    """Columns of `metering.Evidence`, in milliseconds since 1970; NEVER where ``ended_ms`` or ``vanished_ms``
    is None, 0 where another moment is."""

    bound_ms: Any
    started_ms: Any
    ended_ms: Any
    beat_ms: Any
    watermark_ms: Any
    vanished_ms: Any
    grace_ms: Any
    is_listed: Any


@dataclass(frozen=True, slots=True)
class ChargedColumns:
    """Columns of `metering.WitnessedInterval`; each begins with its ``bound_ms``."""

    end_ms: Any
    closed: Any
    proven: Any


def charged(
    evidences: EvidenceColumns,
    now_ms: Any,
    least: Callable[[Any, Any], Any],
    greatest: Callable[[Any, Any], Any],
    where: Callable[[Any, Any, Any], Any],
) -> ChargedColumns:
    """The intervals to charge at ``now_ms``. ``least`` and ``greatest``: of two columns, row by row;
    ``where``: a condition, and what is taken where it holds and where not."""
    start_ms, ended_ms = evidences.bound_ms, evidences.ended_ms
    has_ended, has_vanished = ended_ms != NEVER, evidences.vanished_ms != NEVER
    heard_ms = greatest(evidences.beat_ms, evidences.watermark_ms)
    last_ms = where(ended_ms > 0, ended_ms, greatest(evidences.started_ms, heard_ms))
    until_ms = evidences.vanished_ms + evidences.grace_ms
    living_ms = least(now_ms, where(has_vanished, until_ms, heard_ms))
    return ChargedColumns(
        end_ms=greatest(start_ms, where(has_ended, last_ms, living_ms)),
        closed=has_ended | (has_vanished & (until_ms <= now_ms) & ~evidences.is_listed),
        proven=ended_ms > 0,
    )
