"""Reports bound pods to the timekeeper, so that one that vanishes while no settler runs is charged.

The timekeeper takes the first report of a pod; a repeated one changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from scheduler_ext.log import Log, LogEvent
from scheduler_ext.model.pod import Pod
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Placement
from timekeeper.core.wire import binding_asks
from timekeeper.edge.memory_outbox import MemoryOutbox, OutboxEvents
from timekeeper.edge.timekeeper_client import TimekeeperClient

PATH = "/v1/bindings"
MAX_WAITING = 10_000
TOGETHER = 100  # reports in one post
_EVENTS = OutboxEvents[LogEvent]("bindings-failed", "bindings-sent", "binding-refused", "bindings-dropped")


@dataclass(frozen=True, slots=True)
class _Bound:
    pod: Pod
    node: str
    placement: Placement
    at_ms: int


class BindingReports(MemoryOutbox[_Bound]):
    """``bound`` may be called from any thread, and never waits; `run` sends, in one thread. ``now_ms``: a
    monotonic clock."""

    def __init__(self, client: TimekeeperClient, now_ms: Callable[[], int], log: Log) -> None:
        self._now_ms = now_ms
        super().__init__(
            lambda first: client.deliver(self._encoded(first)),
            _EVENTS,
            log,
            most=MAX_WAITING,
            together=TOGETHER,
            about=lambda bound: {"pod": bound.pod.full_name},
            close=client.close,
        )

    def bound(self, pod: Pod, node: str, placement: Placement) -> None:
        """The pod was bound. If too many wait already, the oldest is dropped."""
        self.add(_Bound(pod, node, placement, self._now_ms()))

    def _encoded(self, first: Sequence[_Bound]) -> bytes:
        now_ms = self._now_ms()
        return orjson.dumps({"version": 1, "bindings": [_wire(bound, now_ms) for bound in first]})


def _wire(bound: _Bound, now_ms: int) -> dict[str, Any]:
    pod, request = bound.pod, bound.pod.request
    return {
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
