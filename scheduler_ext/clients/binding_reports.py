"""Reports bound pods to the timekeeper, so that one that vanishes while no settler runs is charged.

The reports wait in memory: no bind waits for them, and those that are still unsent when the extender ends are
lost. The timekeeper takes the first report of a pod; a repeated one changes nothing.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import orjson

from scheduler_ext.model.pod import Pod
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Placement
from timekeeper.core.wire import BindingEntry, Bindings, binding_asks
from timekeeper.runtime.log import Log
from timekeeper.runtime.recording.batch_poster import BatchPoster
from timekeeper.runtime.timekeeper_client import TimekeeperClient

PATH = "/v1/bindings"
MOST_WAITING = 10_000
TOGETHER = 100  # bindings in one post
EACH_S = 1.0
RESULTS = ("sent", "dropped", "refused", "failed")


@dataclass(frozen=True, slots=True)
class _Bound:
    pod: Pod
    node: str
    placement: Placement
    at_ms: int


class BindingReports:
    """``bound`` may be called from any thread, and never waits; `run` sends, in one thread. ``now_ms``: a
    monotonic clock. ``results``: bindings that were sent, dropped or refused, and posts that failed."""

    def __init__(self, client: TimekeeperClient, now_ms: Callable[[], int], log: Log) -> None:
        self._client, self._now_ms, self._log = client, now_ms, log
        self._lock = threading.Lock()
        self._waiting: deque[_Bound] = deque()
        self._poster = BatchPoster(client, TOGETHER, self._log_failing, self._count_failed)
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))

    def bound(self, pod: Pod, node: str, placement: Placement) -> None:
        """The pod was bound. If too many wait already, the oldest is dropped."""
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self.results["dropped"] += 1
            self._waiting.append(_Bound(pod, node, placement, self._now_ms()))

    def run(self, stop: threading.Event) -> None:
        """Send what waits, each second, until ``stop``."""
        while not stop.wait(EACH_S):
            while self.send() and not stop.is_set():
                pass
        self._client.close()

    def send(self) -> bool:
        """Send the oldest that wait; they stay if that fails. Of a post that the timekeeper refuses half is
        sent alone, and a single binding is given up. True if more wait and it did not fail."""
        with self._lock:
            first = [self._waiting[at] for at in range(min(self._poster.size, len(self._waiting)))]
        if not first:
            return False
        return self._poster.post(self._body(first), len(first), partial(self._ended, first))

    def _count_failed(self) -> None:
        self.results["failed"] += 1

    def _log_failing(self, error: str) -> None:
        if error:
            self._log("bindings-failed", level="warning", error=error)
        else:
            self._log("bindings-sent")

    def _ended(self, first: list[_Bound], result: str, error: str) -> bool:
        if result == "refused":
            self._log("binding-refused", level="error", pod=first[0].pod.full_name, error=error)
        with self._lock:
            gone = set(map(id, first))
            while self._waiting and id(self._waiting[0]) in gone:
                self._waiting.popleft()
            self.results[result] += len(first)
            return bool(self._waiting)

    def _body(self, first: list[_Bound]) -> bytes:
        now_ms = self._now_ms()
        body: Bindings = {"version": 1, "bindings": [_wire(each, now_ms) for each in first]}
        return orjson.dumps(body)


def _wire(bound: _Bound, now_ms: int) -> BindingEntry:
    pod, request = bound.pod, bound.pod.request
    entry: BindingEntry = {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "pod": pod.name,
        "node": bound.node,
        "age_ms": max(0, now_ms - bound.at_ms),
        "dialect": request.dialect if request else "",
        "asks": binding_asks(request) if request else [],
        "devices": encode_placement(bound.placement),
        "grace_ms": pod.grace_ms,
    }
    if pod.host:
        entry["host"] = pod.host
    return entry
