"""The extender's threads and ticks, and how they end."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler_ext.binding.binder import Binder
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.device_slices import DeviceSlices
from scheduler_ext.controllers.requeuer import Requeuer
from scheduler_ext.log import Log, log_exception
from scheduler_ext.reports.closed_nodes import Closures
from scheduler_ext.scoring.selection import Policies
from scheduler_ext.waiting.order import WaitingPod

TICK_S = 0.2
LEARN_S = 60.0  # between two recounts of the typical pods

Work = Callable[[threading.Event], object]


class Threads:
    """Threads that must not end before `stop`. ``die`` ends the process: it is called if a thread ends with
    an exception."""

    def __init__(self, log: Log, die: Callable[[int], object]) -> None:
        self._log, self._die = log, die
        self._stop = threading.Event()

    def start(self, work: Mapping[str, Work]) -> None:
        """Start a thread per entry, named by its key, with the event that asks it to end."""
        for name, each in work.items():
            threading.Thread(target=self._guarded, args=(name, each), name=name, daemon=True).start()

    def stop(self) -> None:
        """Ask the threads to end when they next look. They are daemons, so the process need not wait."""
        self._stop.set()

    def _guarded(self, name: str, work: Work) -> None:
        """Without its thread a cache would silently stop following the cluster. So the process ends too, and
        its successor starts anew from the objects."""
        try:
            work(self._stop)
        except BaseException as error:
            self._log("died", level="error", thread=name)
            log_exception("uncaught", error, thread=name)
            self._die(1)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Regular work that no other part does by itself. ``complete`` is called once the cache is complete."""

    cache: ClusterCache
    policies: Policies
    requeuer: Requeuer
    binder: Binder
    closures: Closures
    slices: DeviceSlices
    log: Log
    complete: Callable[[], object]

    def tick(self, stop: threading.Event) -> None:
        """Expire vanished pods and reservations, judge published GPUs by changed rules, and report closed
        and demoted nodes, once the cache is complete."""
        while not stop.is_set() and not self.cache.complete:
            stop.wait(TICK_S / 10)
        self._ready()
        while not stop.wait(TICK_S):
            self.cache.expire()
            self.slices.judge_again()
            self.closures.look(self.cache.snapshot)

    def settle(self, stop: threading.Event) -> None:
        """Check assumed pods whose binding is uncertain."""
        while not stop.wait(TICK_S):
            for uid in self.cache.uncertain():
                self.binder.resolve_uncertain(uid)

    def learn(self, stop: threading.Event) -> None:
        """Recount the typical pods."""
        while not stop.wait(LEARN_S):
            if self.cache.complete and self.policies.learn(self.cache.snapshot):
                model = self.policies.fragmentation_model
                self.log("learned", shapes=len(model.typical_pods.counts), pods=model.pods)

    def seed(self) -> int:
        """Enter every waiting pod, since this or another replica may have refused it before; returns their
        number."""
        pods = [pod for pod in self.cache.snapshot.pods.values() if not pod.node and pod.request is not None]
        self.requeuer.seed(WaitingPod(pod, self.policies(pod), None) for pod in pods)
        return len(pods)

    def _ready(self) -> None:
        snapshot, waiting = self.cache.snapshot, self.seed()
        self.policies.learn(snapshot)
        self.log("complete", nodes=len(snapshot.nodes), pods=len(snapshot.pods), waiting=waiting)
        self.complete()
