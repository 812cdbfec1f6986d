"""When to beat, when to try again, and what a timekeeper's answer says: pure, times in milliseconds.

Chance comes in as ``fraction``, a number in 0..1 that the caller draws.
"""

from __future__ import annotations

import json

from sidecar.value import value

DEFAULT_INTERVAL_MS = 5_000
LEAST_INTERVAL_MS = 100
MOST_INTERVAL_MS = 300_000
FIRST_BACKOFF_MS = 1_000
MOST_BACKOFF_MS = 60_000


@value
class HeartbeatReply:
    """What the timekeeper answered to a heartbeat; None stands for what it left out or wrote unreadably.
    ``over``: it has seen every other container of the pod end for good."""

    interval_ms: int | None
    in_budget: bool | None
    ca: str | None
    over: bool


def jittered_ms(interval_ms: int, fraction: float) -> int:
    """The interval, a tenth shorter to a tenth longer, so that pods started together drift apart."""
    return interval_ms * 9 // 10 + int(interval_ms * fraction / 5)


def backoff_ms(failures: int, fraction: float) -> int:
    """How long to wait after so many failed posts in a row: doubling from 1 s to 60 s, the upper half of it
    at random."""
    most = min(MOST_BACKOFF_MS, FIRST_BACKOFF_MS << min(failures - 1, 16))
    return most // 2 + int(most * fraction / 2)


def answer(body: bytes) -> HeartbeatReply | None:
    """The answer in a response's body, or None where it is no JSON object, hence not the timekeeper's."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    in_budget, ca = read.get("in_budget"), read.get("ca")
    return HeartbeatReply(
        _interval_ms(read.get("interval_ms")),
        in_budget if isinstance(in_budget, bool) else None,
        ca if isinstance(ca, str) else None,
        read.get("over") is True,
    )


def is_of_a_pod_not_known(body: bytes) -> bool:
    """Whether a refusal's body is the timekeeper's about the pod, and not about the address that it was sent
    to."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(read, dict) and read.get("field") == "pod"


def _interval_ms(told: object) -> int | None:
    if not isinstance(told, int) or isinstance(told, bool):
        return None
    return max(LEAST_INTERVAL_MS, min(MOST_INTERVAL_MS, told))
