"""Elects the timekeeper that settles: the holder of a Lease in the API server.

The Lease only elects. Two processes that both believe they hold it do no harm: each transaction of a settler
checks in the database that its term is current (`timekeeper.store.writes.fencing`). So a settler that cannot
reach the API server continues until another has started a term. Time is measured by each process's own
monotonic clock.

The Kubernetes client's own election is not used: it runs until it loses, cannot release the Lease on request,
and waits without limit for an API server that does not answer.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

from timekeeper import metrics
from timekeeper.api_server import ApiServer, RefusedError
from timekeeper.core.kube.lease import Lease, ObservedVersion, is_free, lease_spec, observe, read_lease
from timekeeper.core.kube.reflector import ExpiredError, UnreachableError
from timekeeper.runtime.log import log

LEASE = "bursar-timekeeper-settler"

_LOOKS = 5  # so many looks at the Lease while it lasts
_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_LABELS = {"app.kubernetes.io/part-of": "bursar"}
_CONFLICT, _NOT_FOUND = 409, 404


class Election:
    """One process's part in it. ``me`` names it; ``now_s`` is a monotonic clock in seconds.

    ``lost``: the Lease was ours, and another has it now.
    """

    def __init__(
        self, api: ApiServer, namespace: str, me: str, duration_ms: int, now_s: Callable[[], float]
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._me = me
        self._duration_s = max(1, duration_ms // 1000)
        self._every_s = duration_ms / 1000 / _LOOKS
        self._now_s = now_s
        self._seen: ObservedVersion | None = None
        self._failed = ""
        self.lost = False

    def wait(self, stop: Event) -> bool:
        """Follow until the Lease is ours: True; False where ``stop`` came first."""
        metrics.LEADS.set(0)
        log("settler-follows", holder=self._me)
        while not self.looks():
            if stop.wait(self._every_s):
                return False
        return True

    def keep(self, stop: Event) -> None:
        """Renew the Lease from a thread of its own until ``stop``, and set that where another has it."""

        def renew() -> None:
            while not stop.wait(self._every_s):
                if self.looks() is False:
                    self.lost = True
                    stop.set()

        Thread(target=renew, name="lease", daemon=True).start()

    def looks(self) -> bool | None:
        """Take or renew the Lease where it can be; None where the API server cannot be asked."""
        try:
            lease = self._read()
            self._seen = observe(lease, self._seen, self._now_s())
            holds = is_free(lease, self._me, self._seen, self._now_s()) and self._write(lease, self._me)
        except (UnreachableError, ExpiredError) as error:
            self._say_failed(str(error))
            return None
        self._say_failed("")
        return holds

    def give_back(self) -> None:
        """Let another lead at once."""
        try:
            lease = self._read()
            if lease is not None and lease.holder == self._me:
                self._write(lease, "")
        except (UnreachableError, ExpiredError) as error:
            log("lease-not-released", level="warning", error=error)

    def _read(self) -> Lease | None:
        try:
            found = self._api.get(f"{_PATH.format(self._namespace)}/{LEASE}")
        except RefusedError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return read_lease(found)

    def _write(self, lease: Lease | None, holder: str) -> bool:
        """Over this version of the Lease or, with None, as a new one; False where another was faster."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people: nobody reckons with it
        metadata: dict[str, Any] = {"name": LEASE, "namespace": self._namespace, "labels": _LABELS}
        spec = lease_spec(lease, holder, self._duration_s, now)
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        path = _PATH.format(self._namespace)
        try:
            if lease is None:
                self._api.post(path, body)
            else:
                metadata["resourceVersion"] = lease.version
                self._api.put(f"{path}/{LEASE}", body)
        except RefusedError as error:
            if error.status in (_CONFLICT, _NOT_FOUND):
                return False
            raise
        return True

    def _say_failed(self, error: str) -> None:
        if error and error != self._failed:
            log("lease-unreachable", level="warning", error=error)
        self._failed = error
