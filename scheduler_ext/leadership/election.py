"""Which replica should lead: a look at a Lease in the API server.

The answer is only a hint. Fencing (`scheduler_ext.leadership.takeover`) keeps two replicas that both believe
they lead from giving out a card twice, so nothing here needs a clock that replicas agree on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from timekeeper.core.kube.lease import Lease, ObservedVersion, is_free, lease_spec, observe, read_lease
from timekeeper.runtime.api_server import Answered, Api, Reply
from timekeeper.runtime.log import Log

CALL_S = 2.0
LOOKS = 5  # so many looks at the Lease while it lasts
FOLLOW_S = 2.0  # kube-scheduler renews its own each two seconds

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_LABELS = {"app.kubernetes.io/part-of": "bursar"}


class Election(Protocol):
    """Says who should lead. ``every_s``: how often it is to be asked."""

    every_s: float

    def look(self) -> bool | None:
        """Whether this replica should lead; None where nobody knows, and all stays as it is."""

    def give_back(self) -> None:
        """This replica ends: let another lead at once."""


class Unelected:
    """There is one replica, and it leads."""

    every_s = 60.0

    def look(self) -> bool | None:
        """Always this one."""
        return True

    def give_back(self) -> None:
        """There is nobody else."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a Lease is."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Its address in the API server."""
        return f"{_LEASES.format(self.namespace)}/{self.name}"


class SchedulersLease:
    """kube-schedulers elect their leader, each beside an extender of its own: the extender of the one that
    holds their Lease leads. kube-scheduler calls itself by its host's name, ``_`` and a random word."""

    every_s = FOLLOW_S

    def __init__(self, api: Api, place: Place, host: str) -> None:
        self._api, self._path, self._mine = api, place.path, f"{host}_"

    def look(self) -> bool | None:
        """Whether the kube-scheduler of this host holds the Lease."""
        reply = self._api.call("GET", self._path, timeout_s=CALL_S)
        if isinstance(reply, Answered) and reply.status == 200:
            return read_lease(reply.body).holder.startswith(self._mine)
        return False if isinstance(reply, Answered) and reply.status == 404 else None

    def give_back(self) -> None:
        """The Lease is kube-scheduler's."""


class OwnLease:
    """Replicas behind one Service elect among themselves. ``me`` names this one; ``now_s`` is a monotonic
    clock in seconds."""

    def __init__(
        self, api: Api, place: Place, me: str, duration_s: int, now_s: Callable[[], float], log: Log
    ) -> None:
        self._api, self._place, self._me, self._log = api, place, me, log
        self._duration_s, self._now_s = duration_s, now_s
        self.every_s = duration_s / LOOKS
        self._seen: ObservedVersion | None = None
        self._renewed_s: float | None = None

    def look(self) -> bool | None:
        """Take or renew the Lease where it can be. One that could not be renewed for as long as it lasts is
        as good as lost."""
        holds = self._take()
        now_s = self._now_s()
        if holds:
            self._renewed_s = now_s
        elif holds is None and self._renewed_s is not None and now_s - self._renewed_s >= self._duration_s:
            holds = False
        if holds is False:
            self._renewed_s = None
        return holds

    def give_back(self) -> None:
        """Let another lead at once."""
        lease = self._read()
        if isinstance(lease, Lease) and lease.holder == self._me:
            self._write(lease, "")

    def _take(self) -> bool | None:
        lease = self._read()
        if isinstance(lease, str):
            return None
        self._seen = observe(lease, self._seen, self._now_s())
        if not is_free(lease, self._me, self._seen, self._now_s()):
            return False
        return self._write(lease, self._me)

    def _read(self) -> Lease | str | None:
        """The Lease, None where there is none yet, or why it could not be read."""
        reply = self._api.call("GET", self._place.path, timeout_s=CALL_S)
        if isinstance(reply, Answered) and reply.status in (200, 404):
            return read_lease(reply.body) if reply.status == 200 else None
        return self._failed(reply)

    def _write(self, lease: Lease | None, holder: str) -> bool | None:
        """Over this version of the Lease or, with None, as a new one; False where another was faster."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata: dict[str, Any] = {"name": self._place.name, "namespace": self._place.namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease.version
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**metadata, "labels": _LABELS},
            "spec": lease_spec(lease, holder, self._duration_s, now),
        }
        path = self._place.path if lease else self._place.path.rpartition("/")[0]
        reply = self._api.call("PUT" if lease else "POST", path, body, timeout_s=CALL_S)
        if isinstance(reply, Answered) and reply.status < 300:
            return True
        if isinstance(reply, Answered) and reply.status in (404, 409):
            return False
        self._failed(reply)
        return None

    def _failed(self, reply: Reply) -> str:
        why = reply.message if isinstance(reply, Answered) else reply.why
        self._log(
            "lease-unreached", level="warning", lease=f"{self._place.namespace}/{self._place.name}", error=why
        )
        return why
