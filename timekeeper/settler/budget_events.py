"""Kubernetes Events on budget ConfigMaps, so that `kubectl describe configmap` shows what is wrong with a
budget."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Thread
from typing import Any

from timekeeper.core.kube.reflector import ExpiredError, UnreachableError
from timekeeper.runtime.api_server import ANSWER_S, Api, accepted
from timekeeper.runtime.log import log
from timekeeper.settler.budget_entries import BudgetNotice

_MOST_WAITING = 200
_LONGEST_NOTE = 1000  # characters; the API server takes 1024


class Announcer:
    """Posts Events from a thread of its own, so that the ledger never waits for the API server. Events that
    cannot be posted are in the log."""

    def __init__(self, api: Api, namespace: str, clock: Callable[[], int]) -> None:
        self._api = api
        self._namespace = namespace
        self._clock = clock
        self._waiting: Queue[BudgetNotice] = Queue(_MOST_WAITING)
        Thread(target=self._post_all, name="announce", daemon=True).start()

    def tell(self, notice: BudgetNotice) -> None:
        """Log the notice and post it as an Event."""
        log("budgets", config_map=notice.config_map.name, reason=notice.reason, message=notice.message)
        try:
            self._waiting.put_nowait(notice)
        except Full:
            log("event-dropped", level="warning", config_map=notice.config_map.name, reason="too many wait")

    def _post_all(self) -> None:
        while True:
            notice = self._waiting.get()
            path = f"/api/v1/namespaces/{self._namespace}/events"
            try:
                body = event(notice, self._namespace, self._clock())
                accepted(self._api.call("POST", path, body, timeout_s=ANSWER_S))
            except (UnreachableError, ExpiredError) as error:
                log("event-not-posted", level="warning", config_map=notice.config_map.name, error=error)


def event(notice: BudgetNotice, namespace: str, now_ms: int) -> Mapping[str, Any]:
    """The Event object. Its name contains a hash of message and time, so names do not clash."""
    at = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(f"{notice.reason} {notice.message} {now_ms}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{notice.config_map.name}.{digest}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": notice.config_map.name,
            "namespace": namespace,
            "uid": notice.config_map.uid,
        },
        "type": "Warning",
        "reason": notice.reason,
        "message": notice.message[:_LONGEST_NOTE],
        "source": {"component": "bursar-timekeeper"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
