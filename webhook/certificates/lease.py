"""Who of several certificate processes acts: the holder of a Lease. A courtesy, not a lock: every write is
tied to what was read, so two that act at once cost a repeated look and nothing else.

The Kubernetes client's own election is not used: it runs until it loses, cannot be told to end or to give the
Lease back, and waits without limit for an API server that does not answer.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as the API server has it; ``holder`` empty where it was given back."""

    holder: str
    duration_s: int
    version: str


@dataclass(frozen=True, slots=True)
class Watched:
    """A version of the Lease, and the monotonic second when we first saw it."""

    version: str
    since_s: float


def watched(lease: Lease | None, before: Watched | None, now_s: float) -> Watched | None:
    """What is known of the Lease after another look at it."""
    if lease is None:
        return None
    if before is not None and before.version == lease.version:
        return before
    return Watched(lease.version, now_s)


def is_free(lease: Lease | None, me: str, seen: Watched | None, now_s: float) -> bool:
    """Whether I may take or renew the Lease: it is mine, nobody's, or its holder has not renewed it for as
    long as it lasts. That is measured by our own clock alone, so that a holder whose clock is wrong harms
    nobody."""
    if lease is None or lease.holder in ("", me):
        return True
    return seen is not None and now_s - seen.since_s >= lease.duration_s
