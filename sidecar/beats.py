"""When to send heartbeats and retries, and how to read the timekeeper's reply. Pure; times in milliseconds.

Randomness is an argument: ``fraction``, a number from 0 to 1.
"""

from __future__ import annotations

import json

from timekeeper.edge.value import value

DEFAULT_INTERVAL_MS = 5_000
LEAST_INTERVAL_MS = 100
MAX_INTERVAL_MS = 300_000


@value
class HeartbeatReply:
    """The timekeeper's reply to a heartbeat. None stands for a field that is missing or malformed."""

    interval_ms: int | None  # the interval that it asks for
    in_budget: bool | None
    ca: str | None  # the CA bundle to trust from now on, PEM


def jittered_ms(interval_ms: int, fraction: float) -> int:
    """The interval plus or minus a tenth, so that pods that start together drift apart."""
    return interval_ms * 9 // 10 + int(interval_ms * fraction / 5)


def read_reply(body: bytes) -> HeartbeatReply | None:
    """The reply in a response's body. None if it is no JSON object: then the sender is not a timekeeper."""
    read = _object(body)
    if read is None:
        return None
    in_budget, ca = read.get("in_budget"), read.get("ca")
    return HeartbeatReply(
        _interval_ms(read.get("interval_ms")),
        in_budget if isinstance(in_budget, bool) else None,
        ca if isinstance(ca, str) else None,
    )


def is_unknown_pod(body: bytes) -> bool:
    """Whether a 404's body says that the pod is unknown, rather than the path."""
    return (_object(body) or {}).get("field") == "pod"


def _object(body: bytes) -> dict[str, object] | None:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def _interval_ms(raw: object) -> int | None:
    if not isinstance(raw, int) or isinstance(raw, bool):
        return None
    return max(LEAST_INTERVAL_MS, min(MAX_INTERVAL_MS, raw))
