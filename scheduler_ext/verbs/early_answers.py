"""Computes filter's next results while no filter, prioritize or bind has begun for 10 ms.

Each bind changes a node, and for each shape of request the first filter after that had to compute it again.
That was half of filter's CPU, on the way of every pod. Between two pods there is time for it, and while a
Binding is on its way to the API server. What is computed early is found by the version of each node, as by a
filter itself, so it is never wrong: a node that changes afterwards is computed once more.
"""

import threading
import time
from collections.abc import Callable
from itertools import count

from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.verbs.fit_cache import FitCache
from timekeeper.runtime.log import log_exception

LOOK_S = 0.01
QUIET_S = 0.01  # since a call has begun: calls that follow each other closely have no time to spare
LOOKS = 10  # without a call for ten times LOOK_S the pauses between two looks get longer
IDLE_S = 0.5
LASTS_S = 10.0  # after the last call nothing is computed any more


class EarlyAnswers:
    """`called` may be called from any thread; `run` does the work in one. ``nodes`` returns the nodes of the
    present snapshot. ``breathe``: lets waiting threads run."""

    def __init__(
        self,
        fit_cache: FitCache,
        nodes: Callable[[], Map[NodeInfo]],
        now_s: Callable[[], float] = time.monotonic,
        breathe: Callable[[], object] = lambda: time.sleep(0),
    ) -> None:
        self._fit_cache, self._nodes, self._now_s, self._breathe = fit_cache, nodes, now_s, breathe
        self._called = threading.Event()
        self._calls, self._call = count(1), 0
        self._last_s = -LASTS_S
        self._done: Map[NodeInfo] | None = None

    def called(self) -> None:
        """A verb begins."""
        self._last_s, self._call = self._now_s(), next(self._calls)
        if not self._called.is_set():
            self._called.set()

    def run(self, stop: threading.Event) -> None:
        """Compute until ``stop``, or until an exception, which is logged: each filter then computes for
        itself, as it does without this thread."""
        try:
            self._run(stop)
        except Exception as error:
            log_exception("early-answers-ended", error)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if self._called.wait(IDLE_S):
                self._called.clear()
                while not stop.wait(self._pause_s()) and self._since_s() < LASTS_S:
                    self.look()

    def look(self) -> None:
        """What has changed is computed for each of the last shapes, until a call begins."""
        call, nodes = self._call, self._nodes()
        if nodes is self._done or self._since_s() < QUIET_S:
            return
        for _ in self._fit_cache.early(nodes):
            self._breathe()
            if self._call != call:
                return
        self._done = nodes

    def _since_s(self) -> float:
        """Seconds since the last call."""
        return self._now_s() - self._last_s

    def _pause_s(self) -> float:
        """The longer no call has come, the longer: a look that finds nothing takes 40 us of CPU."""
        return max(LOOK_S, self._since_s() / LOOKS)
