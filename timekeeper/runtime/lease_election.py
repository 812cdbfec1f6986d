"""Election by a Lease: which of several processes leads. The pure half is `timekeeper.core.kube.lease`.

A Lease elects, and no more: two processes can both believe that they hold it, so what a leader does needs a
fence of its own. Each process measures time by its own monotonic clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timekeeper.core.kube.lease import Lease, ObservedVersion, is_free, lease_spec, observe, read_lease
from timekeeper.core.object_names import timestamp
from timekeeper.edge.clock import now_ms
from timekeeper.edge.log_events import EventLog, LogEvent
from timekeeper.runtime.api_server import Answered, Api, Reply

CALL_S = 2.0
LOOKS = 5  # attempts to renew the Lease within its duration

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_LABELS = {"app.kubernetes.io/part-of": "bursar"}


@dataclass(frozen=True, slots=True)
class LeaseName:
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
        api: Api,
        lease: LeaseName,
        holder: str,
        duration_s: int,
        now_s: Callable[[], float],
        log: EventLog[LogEvent],
    ) -> None:
        self._api, self._lease, self._holder, self._log = api, lease, holder, log
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
        reply = self._api.call("GET", self._lease.path, timeout_s=CALL_S)
        if isinstance(reply, Answered) and reply.status in (200, 404):
            return read_lease(reply.body) if reply.status == 200 else None
        return self._failed(reply)

    def _write(self, lease: Lease | None, holder: str) -> bool | None:
        """Replaces this version of the Lease, or creates one for None. False where another process was
        faster."""
        now = timestamp(now_ms(), "microseconds")
        metadata: dict[str, Any] = {"name": self._lease.name, "namespace": self._lease.namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease.version
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**metadata, "labels": _LABELS},
            "spec": lease_spec(lease, holder, self._duration_s, now),
        }
        path = self._lease.path if lease else self._lease.path.rpartition("/")[0]
        reply = self._api.call("PUT" if lease else "POST", path, body, timeout_s=CALL_S)
        if isinstance(reply, Answered) and reply.status < 300:
            return True
        if isinstance(reply, Answered) and reply.status in (404, 409):
            return False
        self._failed(reply)
        return None

    def _failed(self, reply: Reply) -> str:
        if reply.message != self._error:
            lease = f"{self._lease.namespace}/{self._lease.name}"
            self._log("lease-unreachable", level="warning", lease=lease, error=reply.message)
        self._error = reply.message
        return reply.message
