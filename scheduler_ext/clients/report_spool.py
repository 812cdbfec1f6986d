"""Reports to the timekeeper that wait in memory until it takes them.

No caller waits for a post, and reports that are still unsent when the process ends are lost.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

from scheduler_ext.log import Log, LogEvent
from timekeeper.runtime.recording.decision_posts import BatchPoster
from timekeeper.runtime.timekeeper_client import TimekeeperClient

TOGETHER = 100  # reports in one post
INTERVAL_S = 1.0
RESULTS = ("sent", "dropped", "refused", "failed")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SpoolEvents:
    """The names of a spool's events in the log; ``dropped``: reports begin to be lost, "": that is counted
    alone."""

    failed: LogEvent
    sent: LogEvent
    refused: LogEvent
    dropped: LogEvent | Literal[""] = ""


class ReportSpool(Generic[R]):
    """``body`` makes the body of a post, ``name`` says which pod a report is about; ``most``: how many may
    wait. ``results``: reports that were sent, dropped or refused, and posts that failed."""

    def __init__(
        self,
        client: TimekeeperClient,
        events: SpoolEvents,
        body: Callable[[Sequence[R]], bytes],
        name: Callable[[R], str],
        most: int,
        log: Log,
    ) -> None:
        self._client, self._events, self._body, self._name = client, events, body, name
        self._most, self._log = most, log
        self._lock = threading.Lock()
        self._waiting: deque[R] = deque()
        self._is_dropping = False
        self._poster = BatchPoster(client, TOGETHER, self._log_failing, self._count_failed)
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))

    def add(self, report: R) -> None:
        """From any thread; never waits for a post. If too many wait already, the oldest is dropped."""
        with self._lock:
            begins = len(self._waiting) >= self._most and not self._is_dropping
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self.results["dropped"] += 1
                self._is_dropping = True
            self._waiting.append(report)
        if begins and self._events.dropped:
            self._log(self._events.dropped, level="warning", waiting=self._most)

    def run(self, stop: threading.Event) -> None:
        """Send what waits, each second, until ``stop``."""
        while not stop.wait(INTERVAL_S):
            while self.send() and not stop.is_set():
                pass
        self._client.close()

    def send(self) -> bool:
        """Send the oldest that wait; they stay if that fails. Of a post that the timekeeper refuses half is
        sent alone, and a single report is given up. True if more wait and it did not fail."""
        with self._lock:
            first = [self._waiting[at] for at in range(min(self._poster.size, len(self._waiting)))]
        if not first:
            return False
        return self._poster.post(self._body(first), len(first), partial(self._ended, first))

    def _count_failed(self) -> None:
        self.results["failed"] += 1

    def _log_failing(self, error: str) -> None:
        if error:
            self._log(self._events.failed, level="warning", error=error)
        else:
            self._log(self._events.sent)

    def _ended(self, first: list[R], result: str, error: str) -> bool:
        if result == "refused":
            self._log(self._events.refused, level="error", pod=self._name(first[0]), error=error)
        with self._lock:
            gone = set(map(id, first))
            while self._waiting and id(self._waiting[0]) in gone:
                self._waiting.popleft()
            self.results[result] += len(first)
            self._is_dropping &= bool(self._waiting)
            return bool(self._waiting)
