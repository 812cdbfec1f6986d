"""Times as Kubernetes and REST write them: RFC 3339 in UTC."""

from datetime import UTC, datetime
from typing import Literal


def timestamp(at_ms: int, to: Literal["seconds", "milliseconds", "microseconds"] = "seconds") -> str:
    """The time, without what is smaller than that part. ``at_ms``: milliseconds since 1970. Raises
    ValueError or OverflowError for a time after the year 9999."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000, tzinfo=None)
    return f"{at.isoformat(timespec=to)}Z"
