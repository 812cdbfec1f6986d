"""Election by a Lease: which of several processes leads, for every role.

A Lease elects, and no more: two processes can both believe that they hold it, so every leader needs a fence
of its own. Time is measured by the reader's own monotonic clock, from when it first saw a version of the
Lease: a holder with a wrong clock does no harm. Source: k8s.io/client-go's ``leaderelection``; the Lease
stays readable for it. The Python client's own election is not used: it runs until it loses, cannot end or
release the Lease on request, and waits without limit for an API server that does not answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from timekeeper.edge.clock import moment, now_ms
from timekeeper.edge.log_events import EventLog, OfLease
from timekeeper.edge.reflector import mapping

CALL_S = 2.0
LOOKS = 5  # attempts to renew the Lease within its duration

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_LABELS = {"app.kubernetes.io/part-of": "bursar"}

Call = Callable[[str, str, Mapping[str, Any] | None], tuple[int, Mapping[str, Any], str]]
"""A call of the API server within `CALL_S` with method, path and body: the answer's status, 0 if none came,
its object, and what was wrong."""


class Lease(NamedTuple):
    """A Lease as the API server has it; ``holder`` "": it was released."""

    holder: str
    duration_s: int
    version: str
    transitions: int = 0


class ObservedVersion(NamedTuple):
    """A version of the Lease, and the monotonic second when we first saw it."""

    version: str
    since_s: float


def read_lease(raw: Mapping[str, Any]) -> Lease:
    """The Lease in this JSON; what is not a number counts as 0. Never raises on JSON from an API server."""
    spec, metadata = mapping(raw.get("spec")), mapping(raw.get("metadata"))
    return Lease(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=_whole(spec.get("leaseDurationSeconds")),
        version=str(metadata.get("resourceVersion", "")),
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


def lease_spec(lease: Lease | None, holder: str, duration_s: int, renewed: str) -> dict[str, Any]:
    """The ``spec`` to write over this version of the Lease (None: create it); ``holder`` "": release it.
    ``renewed``: RFC 3339 with microseconds, for people only."""
    changes = 0 if lease is None else lease.transitions + (lease.holder != holder)
    spec = {"leaseDurationSeconds": duration_s, "renewTime": renewed, "leaseTransitions": changes}
    return {**spec, "holderIdentity": holder} if holder else spec


class LeaseName(NamedTuple):
    """Where a Lease is."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Its path in the API server."""
        return f"{_LEASES.format(self.namespace)}/{self.name}"


class LeaseElection:
    """One process's part in an election. ``holder`` names the process; ``now_s`` is a monotonic clock in
    seconds. Not thread-safe."""

    def __init__(
        self,
        call: Call,
        lease: LeaseName,
        holder: str,
        duration_s: int,
        now_s: Callable[[], float],
        log: EventLog[OfLease],
    ) -> None:
        self._call, self._lease, self._holder, self._log = call, lease, holder, log
        self._duration_s, self._now_s = duration_s, now_s
        self.every_s = duration_s / LOOKS
        self._seen: ObservedVersion | None = None
        self._has_held = False
        self._error = ""  # the last one logged; "" after a success

    def look(self) -> bool | None:
        """Takes or renews the Lease if it is free: whether this process holds it. None: unknown, because the
        API server did not answer."""
        holds = self._take()
        if holds is not None:
            self._error = ""
        self._has_held = self._has_held or holds is True
        return holds

    def give_back(self) -> None:
        """Empties the Lease if this process holds it, so that another can take it at once."""
        lease = self._read()
        if isinstance(lease, Lease) and lease.holder == self._holder:
            self._write(lease, "")

    def _take(self) -> bool | None:
        lease = self._read()
        if isinstance(lease, str):
            return None
        self._seen = observe(lease, self._seen, self._now_s())
        if not is_free(lease, self._holder, self._seen, self._now_s(), self._has_held):
            return False
        return self._write(lease, self._holder)

    def _read(self) -> Lease | str | None:
        """The Lease, None where there is none yet, or why it could not be read."""
        status, body, message = self._call("GET", self._lease.path, None)
        if status in (200, 404):
            return read_lease(body) if status == 200 else None
        return self._failed(message)

    def _write(self, lease: Lease | None, holder: str) -> bool | None:
        """Replaces this version of the Lease, or creates one for None. False where another process was
        faster."""
        metadata: dict[str, Any] = {"name": self._lease.name, "namespace": self._lease.namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease.version
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**metadata, "labels": _LABELS},
            "spec": lease_spec(lease, holder, self._duration_s, f"{moment(now_ms())}000Z"),
        }
        path = self._lease.path if lease else self._lease.path.rpartition("/")[0]
        status, _, message = self._call("PUT" if lease else "POST", path, body)
        if 200 <= status < 300:
            return True
        if status in (404, 409):
            return False
        self._failed(message)
        return None

    def _failed(self, message: str) -> str:
        if message != self._error:
            lease = f"{self._lease.namespace}/{self._lease.name}"
            self._log("lease-unreachable", level="warning", lease=lease, error=message)
        self._error = message
        return message


def _container(holder: str) -> str:
    """The pod's UID and container in a holder's name; "" for other names. The kubelet starts a container
    again only after all its processes have ended."""
    place = holder.rpartition("_")[0]
    return place if "/" in place else ""


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
