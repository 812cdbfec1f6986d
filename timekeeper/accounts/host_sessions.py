"""What a pod's CPU and memory cost beyond its cards, with ``chargeBy: dominant-host``.

A session has one rate, and a resize changes what CPU and memory cost. So they have sessions of their own: one
from the binding, another from each growth on. A pod that shrinks ends the newest of them. They end with the
session of the pod's cards, on the same evidence.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from timekeeper.accounts.session import HOST, Session
from timekeeper.core.request.host import HostAmount


def host_uid(pod_uid: str, from_ms: int) -> str:
    """The UID of the session that begins then."""
    return f"{pod_uid}{HOST}{from_ms}"


def _opened(own: Session, rate_milli: int, from_ms: int, now_ms: int) -> Session:
    """A session at this rate of the pod with this session of its cards."""
    return replace(
        own,
        uid=host_uid(own.uid, from_ms),
        kind="host",
        devices="",
        rate_milli=rate_milli,
        bound_ms=from_ms,
        opened_ms=now_ms,
        started_ms=None,
        requested_milli=0,
        requested_mib=0,
        doubt=None,
        host_cpu_milli=None,
        host_memory_bytes=None,
    )


def resized(
    own: Session, others: Iterable[Session], rate_milli: int, from_ms: int, now_ms: int
) -> Iterator[Session]:
    """The sessions of CPU and memory that open or end, so that all of the pod's cost this rate together, or
    the cards alone if they cost more. ``others``: the open ones, the oldest first."""
    left = list(others)
    total = own.rate_milli + sum(session.rate_milli for session in left)
    while left and total > rate_milli:
        last = left.pop()
        total -= last.rate_milli
        yield replace(last, ended_ms=max(from_ms, last.bound_ms))
    if total < rate_milli:
        yield _opened(own, rate_milli - total, from_ms, now_ms)


def ended_with(own: Session, other: Session) -> Session:
    """The session of CPU and memory with the end of that of the pod's cards, and forgiven as that is."""
    bound_ms = other.bound_ms if own.forgiven_ms is None else max(own.bound_ms, other.bound_ms)
    return replace(
        other,
        bound_ms=bound_ms,
        forgiven_ms=(other.forgiven_ms or 0) + bound_ms - other.bound_ms or None,
        ended_ms=own.ended_ms,
        vanished_ms=own.vanished_ms,
        grace_ms=own.grace_ms,
        watermark_ms=own.watermark_ms,
        others_ended=own.others_ended,
        was_unseen=own.was_unseen,
    )


def recorded_host(own: Session) -> HostAmount | None:
    """The CPU and memory that the pod's sessions charge for; None: that is not recorded."""
    if own.host_cpu_milli is None or own.host_memory_bytes is None:
        return None
    return HostAmount(own.host_cpu_milli, own.host_memory_bytes)


def recording(own: Session, host: HostAmount) -> Session:
    """The session of the pod's cards with what is charged from now on."""
    return replace(own, host_cpu_milli=host.cpu_milli, host_memory_bytes=host.memory_bytes)
