"""Kubernetes Events, so that `kubectl describe` shows what a process of ours decided about an object.

They are of events.k8s.io/v1, as kube-scheduler's own are: their times are exact, and each names its reporter.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from heapq import heapify, heappop, heappush
from itertools import count

from timekeeper.edge.clock import moment
from timekeeper.edge.value import TYPE_CHECKING, Of, value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal, TypeVar

    from timekeeper.edge.log_events import EventLog, OfEvents

    R = TypeVar("R", bound=str)  # the reasons that a process gives
    EventType = Literal["Normal", "Warning"]
    # Posts this object to this path. Returns the status of the answer, 0 if none came, and what was wrong.
    Send = Callable[[str, Mapping[str, Any]], tuple[int, str]]
else:
    R = EventType = Send = None

MAX_QUEUED = 1_000  # of all namespaces; then the namespace that has most loses its newest
MAX_PER_OBJECT = 10  # in one span
SPAN_MS = 300_000  # within one, the same text about the same object is sent once
RETRY_FOR_MS = 300_000  # an older Event is given up
RETRY_MS = 2_000  # until an Event is tried again; others are sent meanwhile
PAUSE_S = 0.02  # between two, so that a burst of preemptions is no burst of calls
LOOK_S = 0.5  # for the end while no Event waits
MAX_NOTE_BYTES = 1024  # this limit and the next two are the API server's
MAX_NAME = 253
MAX_INSTANCE = 128

RESULTS = ("posted", "repeated", "dropped", "failed")


@value
class QueuedEvent:
    """An Event to be sent. ``name`` is derived from the span, the object and the text: two replicas with the
    same text make one Event."""

    regarding: Mapping[str, str]
    namespace: str  # of the Event
    name: str
    reason: str
    note: str
    type: EventType
    at_ms: int


class EventRecorder(Of[R]):
    """Queues Events and sends them one by one, of each namespace in turn. The methods that post may be called
    from any thread, never raise and never wait; `run` sends, in one thread.

    ``reporter``: a qualified name, as ``bursar.dev/extender``; ``instance``: the process. ``reason`` is one
    word in CamelCase, ``note`` a sentence for people.
    """

    def __init__(
        self,
        send: Send,
        reporter: str,
        instance: str,
        now_ms: Callable[[], int],
        log: EventLog[OfEvents],
        most_per_object: int = MAX_PER_OBJECT,
    ) -> None:
        self._post, self._now_ms, self._log = send, now_ms, log
        self._source = {"reportingController": reporter, "reportingInstance": instance[:MAX_INSTANCE]}
        self._most_per_object = most_per_object
        self._arrived = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        # by namespace, in the order of their turns: a heap of when each is due, its number, and the Event
        self._waiting: dict[str, list[tuple[int, int, QueuedEvent]]] = {}
        self._numbers = count()
        self._span = 0  # number of the current span
        self._names: set[str] = set()  # of the Events queued in it
        self._per_object: Counter[str] = Counter()  # UID -> Events queued in it
        self._results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))

    def post(
        self, namespace: str, name: str, uid: str, reason: R, note: str, event_type: EventType = "Normal"
    ) -> None:
        """About a pod."""
        self.post_on(_reference("Pod", namespace, name, uid), reason, note, event_type)

    def post_on_config_map(
        self, namespace: str, name: str, uid: str, reason: R, note: str, event_type: EventType = "Normal"
    ) -> None:
        """Post an Event on a ConfigMap. Never waits."""
        self.post_on(_reference("ConfigMap", namespace, name, uid), reason, note, event_type)

    def post_on_node(self, name: str, reason: R, note: str, event_type: EventType = "Normal") -> None:
        """The node's name stands for its UID, as in the kubelet's Events: kubectl looks for both. Events on
        objects without a namespace are in ``default``."""
        self.post_on(_reference("Node", "", name, name), reason, note, event_type)

    def results(self) -> Mapping[str, int]:
        """Events so far by result. ``posted``: stored; ``repeated``: not sent, because of the same text in
        this span or too many about one object; ``dropped``: too many waited; ``failed``: refused, or not
        accepted in time."""
        with self._lock:
            return dict(self._results)

    def run(self, stop: threading.Event) -> None:
        """Sends until ``stop``."""
        while not stop.is_set():
            event = self._next()
            if event is not None:
                self._send(event)
            elif not self._waiting:
                self._arrived.wait(LOOK_S)
                continue
            stop.wait(PAUSE_S)

    def post_on(
        self, regarding: Mapping[str, str], reason: R, note: str, event_type: EventType = "Normal"
    ) -> None:
        """About any object: ``regarding`` has its apiVersion, kind, name, uid and, where it has one,
        namespace."""
        at_ms = self._now_ms()
        span = at_ms // SPAN_MS
        text = "\n".join((str(span), regarding["uid"], reason, note))
        digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
        namespace, name = regarding.get("namespace", "default"), _name(regarding["name"], digest)
        event = QueuedEvent(regarding, namespace, name, reason, note, event_type, at_ms)
        with self._lock:
            dropped = self._enqueue(span, event)
        if dropped is not None:
            self._count("dropped")
            self._log("event-dropped", level="warning", **_log_fields(dropped), error="too many Events wait")

    def _enqueue(self, span: int, event: QueuedEvent) -> QueuedEvent | None:
        """Queues it, or counts it as repeated. Returns the Event that is dropped: it, or the newest of the
        namespace that has most, where that has two more."""
        if span != self._span:
            self._span = span
            self._names.clear()
            self._per_object.clear()
        uid = event.regarding["uid"]
        if event.name in self._names or self._per_object[uid] >= self._most_per_object:
            self._results["repeated"] += 1
            return None
        dropped = None
        if sum(map(len, self._waiting.values())) >= MAX_QUEUED:
            most = max(self._waiting.values(), key=len)
            if len(self._waiting.get(event.namespace, ())) + 1 >= len(most):
                return event
            newest = max(most)
            most.remove(newest)
            heapify(most)
            dropped = newest[2]
        self._put(event, event.at_ms)
        self._names.add(event.name)
        self._per_object[uid] += 1
        return dropped

    def _put(self, event: QueuedEvent, due_ms: int) -> None:
        heappush(self._waiting.setdefault(event.namespace, []), (due_ms, next(self._numbers), event))
        self._arrived.set()

    def _next(self) -> QueuedEvent | None:
        """The first due Event of the namespace whose turn it is; None where none is due."""
        now_ms = self._now_ms()
        with self._lock:
            for namespace, waiting in self._waiting.items():
                if not now_ms < waiting[0][0] <= now_ms + RETRY_MS:  # also due where the clock was put back
                    event = heappop(waiting)[2]
                    del self._waiting[namespace]
                    if waiting:
                        self._waiting[namespace] = waiting
                    return event
            self._arrived.clear()
        return None

    def _send(self, event: QueuedEvent) -> None:
        """Tries once. What may succeed later is due later."""
        path = f"/apis/events.k8s.io/v1/namespaces/{event.namespace}/events"
        status, why = self._post(path, _body(event) | self._source)
        now_ms = self._now_ms()
        if 200 <= status < 300 or status == 409:
            self._count("posted")
        elif (status in (0, 429) or status >= 500) and now_ms - event.at_ms < RETRY_FOR_MS:
            with self._lock:
                self._put(event, now_ms + RETRY_MS)
        else:
            self._count("failed")
            self._log("event-not-posted", level="warning", **_log_fields(event), error=why)

    def _count(self, result: str) -> None:
        with self._lock:
            self._results[result] += 1


def _reference(kind: str, namespace: str, name: str, uid: str) -> dict[str, str]:
    inside = {"namespace": namespace} if namespace else {}
    return {"apiVersion": "v1", "kind": kind, **inside, "name": name, "uid": uid}


def _body(event: QueuedEvent) -> dict[str, Any]:
    """The Event object without its source."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": event.namespace},
        "eventTime": f"{moment(event.at_ms)}000Z",
        "action": event.reason,
        "reason": event.reason,
        "type": event.type,
        "regarding": dict(event.regarding),
        "note": event.note.encode(errors="replace")[:MAX_NOTE_BYTES].decode(errors="ignore"),
    }


def _log_fields(event: QueuedEvent) -> dict[str, Any]:
    about = event.regarding
    return {"namespace": about.get("namespace"), "about": about["name"], "reason": event.reason}


def _name(stem: str, digest: str) -> str:
    """A valid name of an object, even where the stem must be cut."""
    return re.sub(r"[-.]+$", "", stem[: MAX_NAME - len(digest) - 1]) + "." + digest
