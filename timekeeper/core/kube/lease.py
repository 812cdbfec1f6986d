"""Leader election by a Lease: the pure part, for every role.

A Lease only elects. It does not keep two processes that both believe they hold it from acting, so every
leader needs fencing of its own. Time is measured by the reader's own monotonic clock, from when it first saw
a version of the Lease: a holder with a wrong clock does no harm. Source: k8s.io/client-go's
``leaderelection``; the Lease stays readable for it. The Python client's own election is not used: it runs
until it loses, cannot end or release the Lease on request, and waits without limit for an API server that
does not answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.core.json_values import mapping


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as the API server has it; ``holder`` "": it was released."""

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
    """The Lease in this JSON; what is not a number counts as 0. Never raises on JSON from an API server."""
    spec = mapping(raw.get("spec"))
    return Lease(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=_whole(spec.get("leaseDurationSeconds")),
        version=str(mapping(raw.get("metadata")).get("resourceVersion", "")),
        transitions=_whole(spec.get("leaseTransitions")),
    )


def observe(lease: Lease | None, before: ObservedVersion | None, now_s: float) -> ObservedVersion | None:
    """What is known of the Lease after reading it again."""
    if lease is None:
        return None
    if before is not None and before.version == lease.version:
        return before
    return ObservedVersion(lease.version, now_s)


def is_free(
    lease: Lease | None, me: str, seen: ObservedVersion | None, now_s: float, has_held: bool = False
) -> bool:
    """Whether ``me`` may take or renew the Lease: it is ours, released, was held by an earlier process of our
    container, or was not renewed for its duration.

    ``has_held``: this process has held it before. Then another process of its container is a newer one, which
    keeps it.
    """
    if lease is None or lease.holder in ("", me):
        return True
    if not has_held and _container(me) and _container(lease.holder) == _container(me):
        return True
    return seen is not None and now_s - seen.since_s >= lease.duration_s


def holder_name(host: str, pod_uid: str, container: str, word: str) -> str:
    """The name of one process for the Lease. ``pod_uid`` "": outside Kubernetes, where ``host`` names the
    machine. ``word``: random, of this process."""
    return f"{pod_uid}/{container}_{word}" if pod_uid else f"{host}_{word}"


def _container(holder: str) -> str:
    """The pod's UID and container in a holder's name; "" for other names. The kubelet starts a container
    again only after all its processes have ended."""
    place = holder.rpartition("_")[0]
    return place if "/" in place else ""


def lease_spec(lease: Lease | None, holder: str, duration_s: int, renewed: str) -> dict[str, Any]:
    """The ``spec`` to write over this version of the Lease (None: create it); ``holder`` "": release it.
    ``renewed``: RFC 3339 with microseconds, for people only."""
    changes = 0 if lease is None else lease.transitions + (lease.holder != holder)
    spec = {"leaseDurationSeconds": duration_s, "renewTime": renewed, "leaseTransitions": changes}
    return {**spec, "holderIdentity": holder} if holder else spec


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
