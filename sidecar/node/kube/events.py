"""Posts Kubernetes Events on pods and on the node, from a bounded queue and a thread of their own, so nothing
else waits for the API server."""

from __future__ import annotations

import hashlib
import queue
import re
import time

from sidecar.log import log
from sidecar.node.kube.api import ApiUnreachable
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.node.kube.api import NodeApi
    from sidecar.node.state.overuse import AgentEvent

MAX_QUEUED = 500
TRIES = 5
PAUSE_S = 2.0
MAX_NOTE_BYTES = 1024  # the API server's limit
MAX_NAME = 253
REPORTER = "bursar.dev/node"


class EventPoster:
    """`post` may be called from any thread and never waits; `run` sends forever in one thread. ``node``: the
    reporting node, which an event without a namespace is about."""

    def __init__(self, api: NodeApi, node: str, pause: Callable[[float], None] = time.sleep) -> None:
        self._api, self._node, self._pause = api, node, pause
        self._queue: queue.Queue[tuple[AgentEvent, int]] = queue.Queue(MAX_QUEUED)
        self.results = {"posted": 0, "dropped": 0, "failed": 0}

    def post(self, notice: AgentEvent) -> None:
        """Queue an Event. If the queue is full, the Event is dropped, counted and logged."""
        try:
            self._queue.put_nowait((notice, time.time_ns()))
        except queue.Full:
            self.results["dropped"] += 1
            log("event-dropped", level="warning", about=notice.name, reason=notice.reason, note=notice.note)

    def run(self) -> None:
        """Send the queued Events, forever."""
        while True:
            notice, at_ns = self._queue.get()
            self._send(notice, at_ns)

    def _send(self, notice: AgentEvent, at_ns: int) -> None:
        body = event(notice, self._node, at_ns)
        path = f"/apis/events.k8s.io/v1/namespaces/{body['metadata']['namespace']}/events"
        why = ""
        for _ in range(TRIES):
            try:
                answer = self._api.call("POST", path, body)
            except ApiUnreachable as error:
                why = str(error)
                self._pause(PAUSE_S)
                continue
            if answer.status < 300 or answer.status == 409:
                self.results["posted"] += 1
                return
            why = f"{answer.status} {answer.message}"
            if answer.status not in (429, 500, 503, 504):
                break
            self._pause(PAUSE_S)
        self.results["failed"] += 1
        log(
            "event-failed",
            level="warning",
            about=notice.name,
            reason=notice.reason,
            note=notice.note,
            error=why,
        )


def event(notice: AgentEvent, node: str, at_ns: int) -> dict[str, Any]:
    """The Event object. As with the kubelet's Events, a node's name stands for its UID, and an Event about a
    node is in the namespace ``default``."""
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": notice.namespace, "name": notice.name}
    about["uid"] = notice.uid
    if not notice.namespace:
        about = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    text = "\n".join((about["uid"], notice.reason, notice.note, str(at_ns)))
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    name = re.sub(r"[-.]+$", "", about["name"][: MAX_NAME - len(digest) - 1]) + "." + digest
    seconds, rest_ns = divmod(at_ns, 10**9)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": notice.namespace or "default"},
        "eventTime": f"{moment}.{rest_ns // 1000:06}Z",
        "reportingController": REPORTER,
        "reportingInstance": node[:128],
        "action": notice.reason,
        "reason": notice.reason,
        "type": notice.kind,
        "regarding": about,
        "note": notice.note.encode(errors="replace")[:MAX_NOTE_BYTES].decode(errors="ignore"),
    }
