"""Who of several processes acts: the holder of a Lease. The pure part of an election, for every role.

A Lease elects, and no more: nothing here keeps two that both think they hold it from acting, so whoever acts
needs a fence of its own. Time is measured by the reader's own monotonic clock alone, from when it first saw a
version of the Lease, so a holder whose clock is wrong harms nobody. Source: k8s.io/client-go's
``leaderelection``, which the Lease stays readable for. The Python client's own election is not used: it runs
until it loses, cannot be told to end or to give the Lease back, and waits without limit for an API server
that does not answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.core.request.request import mapping


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as the API server has it; ``holder`` empty where it was given back."""

    holder: str
    duration_s: int
    version: str
    transitions: int = 0


@dataclass(frozen=True, slots=True)
class ObservedVersion:
    """A version of the Lease, and the monotonic second when we first saw it."""

    version: str
    since_s: float


def read_lease(raw: Mapping[str, Any]) -> Lease:
    """The Lease of its JSON; what is no number counts as 0. Never raises on what an API server can hold."""
    spec = mapping(raw.get("spec"))
    return Lease(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=_whole(spec.get("leaseDurationSeconds")),
        version=str(mapping(raw.get("metadata")).get("resourceVersion", "")),
        transitions=_whole(spec.get("leaseTransitions")),
    )


def observe(lease: Lease | None, before: ObservedVersion | None, now_s: float) -> ObservedVersion | None:
    """What is known of the Lease after another look at it."""
    if lease is None:
        return None
    if before is not None and before.version == lease.version:
        return before
    return ObservedVersion(lease.version, now_s)


def is_free(lease: Lease | None, me: str, seen: ObservedVersion | None, now_s: float) -> bool:
    """Whether I may take or renew the Lease: it is mine, nobody's, or its holder has not renewed it for as
    long as it lasts."""
    if lease is None or lease.holder in ("", me):
        return True
    return seen is not None and now_s - seen.since_s >= lease.duration_s


def lease_spec(lease: Lease | None, holder: str, duration_s: int, renewed: str) -> dict[str, Any]:
    """The ``spec`` to write over this version of the Lease (None: there is none yet); ``holder`` empty gives
    it back. ``renewed``: RFC 3339 with microseconds, for people: nobody reckons with it."""
    changes = 0 if lease is None else lease.transitions + (lease.holder != holder)
    spec = {"leaseDurationSeconds": duration_s, "renewTime": renewed, "leaseTransitions": changes}
    return {**spec, "holderIdentity": holder} if holder else spec


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
