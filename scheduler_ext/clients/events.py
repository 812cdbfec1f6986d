"""Kubernetes Events on pods and nodes, so that `kubectl describe` shows the decisions about them.

They report what the object itself does not show: a bind that was taken back, a preemption, a node that was
closed. A verb never waits for one: `Events.post` only puts it into a bounded queue, and `Events.run` sends
them one by one. They are of events.k8s.io/v1, as kube-scheduler's own are: its times are exact, and it names
the reporter.
"""

import hashlib
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from timekeeper.core import names
from timekeeper.runtime.api_server import Answered, Api, Reply
from timekeeper.runtime.log import Log

Kind = Literal["Normal", "Warning"]

MOST_QUEUED = 1_000
MOST_OF_AN_OBJECT = 10  # in one span
SPAN_MS = 300_000  # within one, the same text about the same object is sent once
KEPT_MS = 300_000  # so long an Event is worth sending
SEND_S = 2.0
RETRY_S = 2.0
PAUSE_S = 0.02  # between two, so that a storm of preemptions is no storm of Events
MOST_NOTE_BYTES = 1024  # the API server's limit
MOST_NAME = 253

REPORTER = f"{names.DOMAIN}/extender"
RESULTS = ("posted", "repeated", "dropped", "failed")


@dataclass(frozen=True, slots=True)
class Event:
    """A text about an object, and its time. ``name`` is derived from these: two replicas with the same text
    make one Event."""

    about: Mapping[str, str]
    namespace: str
    name: str
    reason: str
    message: str
    kind: Kind
    at_ms: int


class Events:
    """``instance``: which process reports. `post` and `post_on_node` may be called from any thread, never
    raise and never wait; `run` sends in one thread."""

    def __init__(self, api: Api, now_ms: Callable[[], int], log: Log, instance: str) -> None:
        self._api, self._now_ms, self._log, self._instance = api, now_ms, log, instance
        self._queue: queue.Queue[Event] = queue.Queue(MOST_QUEUED)
        self._lock = threading.Lock()
        self._span, self._said = 0, set[str]()
        self._of_object: Counter[str] = Counter()
        self._results = Counter[str](dict.fromkeys(RESULTS, 0))

    def post(
        self, namespace: str, name: str, uid: str, reason: str, message: str, kind: Kind = "Normal"
    ) -> None:
        """Tell it about a pod. ``reason``: one word in CamelCase; ``message``: a sentence for people."""
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        self._put(about, namespace, reason, message, kind)

    def post_on_node(self, name: str, reason: str, message: str, kind: Kind = "Normal") -> None:
        """Tell it about a node. As the kubelet does, its name stands for its UID: kubectl looks for both, and
        the Events of what has no namespace are in ``default``."""
        about = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}
        self._put(about, "default", reason, message, kind)

    def results(self) -> Mapping[str, int]:
        """How many there were so far by what became of them: ``posted``; ``repeated``: told just before, or
        too many about one object; ``dropped``: the queue was full; ``failed``: the API server did not take
        it, or not in time."""
        with self._lock:
            return dict(self._results)

    def run(self, stop: threading.Event) -> None:
        """Sends until ``stop``."""
        while not stop.is_set():
            try:
                event = self._queue.get(timeout=0.5)
            except queue.Empty:
                continue
            self._send(event, stop)
            stop.wait(PAUSE_S)

    def _put(self, about: Mapping[str, str], namespace: str, reason: str, message: str, kind: Kind) -> None:
        at_ms = self._now_ms()
        span = at_ms // SPAN_MS
        text = "\n".join((str(span), about["uid"], reason, message))
        digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
        event = Event(about, namespace, _name(about["name"], digest), reason, message, kind, at_ms)
        with self._lock:
            known = self._queued(span, digest, event)
            if known:
                self._results[known] += 1

    def _queued(self, span: int, digest: str, event: Event) -> str:
        """What became of it, as a word of the results; "" where it is under way."""
        if span != self._span:
            self._span, self._said = span, set()
            self._of_object.clear()
        uid = event.about["uid"]
        if digest in self._said or self._of_object[uid] >= MOST_OF_AN_OBJECT:
            return "repeated"
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            return "dropped"
        self._said.add(digest)
        self._of_object[uid] += 1
        return ""

    def _send(self, event: Event, stop: threading.Event) -> None:
        path = f"/apis/events.k8s.io/v1/namespaces/{event.namespace}/events"
        body, why = body_of(event, self._instance), "too old"
        while not stop.is_set() and self._now_ms() - event.at_ms < KEPT_MS:
            reply = self._api.call("POST", path, body, timeout_s=SEND_S)
            if isinstance(reply, Answered) and (reply.status < 300 or reply.status == 409):
                return self._count("posted")
            why = reply.message
            if not _may_work_later(reply):
                break
            stop.wait(RETRY_S)
        self._count("failed")
        self._log("untold", level="warning", about=event.about["name"], reason=event.reason, error=why)

    def _count(self, result: str) -> None:
        with self._lock:
            self._results[result] += 1


def body_of(event: Event, instance: str) -> dict[str, Any]:
    """The object that is sent."""
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC)
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": event.namespace},
        "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": REPORTER,
        "reportingInstance": instance,
        "action": event.reason,
        "reason": event.reason,
        "type": event.kind,
        "regarding": dict(event.about),
        "note": event.message.encode(errors="replace")[:MOST_NOTE_BYTES].decode(errors="ignore"),
    }


def _name(of: str, digest: str) -> str:
    """A name that the API server takes, whatever the object's own is cut to."""
    return re.sub(r"[-.]+$", "", of[: MOST_NAME - len(digest) - 1]) + "." + digest


def _may_work_later(reply: Reply) -> bool:
    return not isinstance(reply, Answered) or reply.status == 429 or reply.status >= 500
