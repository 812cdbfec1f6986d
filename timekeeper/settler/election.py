"""Which of several timekeepers settles: the one that holds a Lease in the API server.

The Lease elects, and no more. Two settlers that both believe they hold it do no harm: each transaction of a
settler checks in the database that its epoch is not over (`timekeeper.store.writes.fencing`). So a settler
that cannot reach the API server goes on until another has begun an epoch.
"""

from collections.abc import Callable
from threading import Event, Thread

from timekeeper import metrics
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.lease_election import LeaseElection, LeaseName
from timekeeper.runtime.log import log

LEASE = "bursar-timekeeper-settler"


class SettlerElection(LeaseElection):
    """One timekeeper's part in the election of the settler. ``me`` names it; ``now_s`` is a monotonic clock
    in seconds. ``lost``: this process held the Lease, and another holds it now."""

    def __init__(
        self, api: Api, namespace: str, me: str, duration_ms: int, now_s: Callable[[], float]
    ) -> None:
        duration_s = max(1, duration_ms // 1000)
        super().__init__(api, LeaseName(namespace, LEASE), me, duration_s, now_s, log)
        self._me = me
        self.lost = False

    def wait(self, stop: Event) -> bool:
        """Follow until this process holds the Lease: True; False where ``stop`` came first."""
        metrics.LEADS.set(0)
        log("settler-follows", holder=self._me)
        while not self.look():
            if stop.wait(self.every_s):
                return False
        return True

    def keep(self, stop: Event) -> None:
        """Renew the Lease from a thread of its own until ``stop``. Where another process holds it, set
        ``stop``."""

        def renew() -> None:
            while not stop.wait(self.every_s):
                if self.look() is False:
                    self.lost = True
                    stop.set()

        Thread(target=renew, name="lease", daemon=True).start()
