"""Reports to the timekeeper the removals of bound pods, so that one that ends while no settler runs is
charged exactly.

Every replica reports what it saw, for a leader may end with its memory; the timekeeper joins their reports,
and a repeated one changes nothing. A pod whose removal the watch missed is reported only if its end was seen
before.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from scheduler_ext.clients.binding_reports import TOGETHER
from scheduler_ext.log import Log, LogEvent
from scheduler_ext.model.pod import Pod
from timekeeper.core.ledger.hold import PodHold
from timekeeper.edge.memory_outbox import MemoryOutbox, OutboxEvents
from timekeeper.edge.timekeeper_client import TimekeeperClient

PATH = "/v1/ends"
MAX_WAITING = 50_000  # an hour of 14 ends a second
MAX_VANISHED = 10_000
_EVENTS = OutboxEvents[LogEvent]("ends-failed", "ends-sent", "end-refused", "ends-dropped")


@dataclass(frozen=True, slots=True)
class _End:
    """Times by a monotonic clock, those of the hold by their own."""

    uid: str
    namespace: str
    name: str
    node: str
    hold: PodHold
    removed_ms: int
    left_ms: int | None = None


class EndReports(MemoryOutbox[_End]):
    """`removed` and `left` may be called from any thread, and never wait; `run` sends, in one thread.
    ``now_ms``: a monotonic clock."""

    def __init__(self, client: TimekeeperClient, now_ms: Callable[[], int], log: Log) -> None:
        self._now_ms = now_ms
        self._follow_lock = threading.Lock()
        self._vanished: OrderedDict[str, _End] = OrderedDict()  # pods that may still hold their cards
        super().__init__(
            lambda first: client.deliver(self._encoded(first)),
            _EVENTS,
            log,
            most=MAX_WAITING,
            together=TOGETHER,
            about=lambda end: {"pod": f"{end.namespace}/{end.name}"},
            close=client.close,
        )

    def removed(self, pod: Pod) -> None:
        """The object of this bound pod is gone; its hold is that of all versions of it."""
        end = _End(pod.uid, pod.namespace, pod.name, pod.node, pod.hold, self._now_ms())
        if not pod.hold.over:
            with self._follow_lock:
                self._vanished[pod.uid] = end
                if len(self._vanished) > MAX_VANISHED:
                    self._vanished.popitem(last=False)
        self.add(end)

    def left(self, uid: str, age_ms: int | None) -> None:
        """The vanished pod holds its cards no more: its node's agent ceased to list it so long ago; None: its
        grace period is over, which the first report says."""
        with self._follow_lock:
            end = self._vanished.pop(uid, None)
        if end is not None and age_ms is not None:
            self.add(replace(end, left_ms=self._now_ms() - age_ms))

    def _encoded(self, first: Sequence[_End]) -> bytes:
        now_ms = self._now_ms()
        return orjson.dumps({"version": 1, "ends": [_wire(end, now_ms) for end in first]})


def _wire(end: _End, now_ms: int) -> dict[str, Any]:
    held = end.hold
    return {
        "uid": end.uid,
        "namespace": end.namespace,
        "pod": end.name,
        "node": end.node,
        "bound_ms": held.bound_ms,
        "over": held.over,
        "ended_ms": held.ended_ms,
        "reported_ms": held.reported_ms,
        "witnessed_ms": held.witnessed_ms,
        "grace_ms": held.grace_ms,
        "deletion_ms": held.deletion_ms,
        "removed_age_ms": max(0, now_ms - end.removed_ms),
        "left_age_ms": None if end.left_ms is None else max(0, now_ms - end.left_ms),
    }
