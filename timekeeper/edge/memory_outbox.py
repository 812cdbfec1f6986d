"""An outbox in memory with a thread that sends. What is unsent when the process ends is lost."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from timekeeper.edge.log_events import EventLog
from timekeeper.edge.outbox import NotDelivered, Outbox, OutboxLimits, Result

R = TypeVar("R")
E = TypeVar("E", bound=str)

RESULTS = ("sent", "dropped", "refused", "failed")


class OutboxEvents(NamedTuple, Generic[E]):
    """The names in the log: a post failed, for a reason that is new in this outage; one succeeded again; a
    record is given up; records begin to be dropped."""

    failed: E
    sent: E
    refused: E
    dropped: E


class MemoryOutbox(Generic[R]):
    """Any thread may `add`, and never waits for a post; `run` sends, in one thread. Of more than ``most``
    records the oldest is dropped; where ``namespace`` says whose a record is, the oldest of who has most of
    them, a hundredth of the bound at once.

    ``send``: sends up to ``together`` records, and returns why that failed. ``about``: what the log says of a
    record; ``weight``: how many it counts; ``namespace``: whose it is. ``count``: called with a result and
    how many. ``close``: called at the end of `run`.
    """

    def __init__(
        self,
        send: Callable[[Sequence[R]], NotDelivered | None],
        events: OutboxEvents[E],
        log: EventLog[E],
        *,
        most: int,
        together: int,
        about: Callable[[R], Mapping[str, str]],
        weight: Callable[[R], int] = lambda _: 1,
        namespace: Callable[[R], str] | None = None,
        count: Callable[[str, int], None] = lambda _result, _number: None,
        close: Callable[[], None] = lambda: None,
        every_s: float = 1.0,
    ) -> None:
        self._post, self._events, self._log, self._most = send, events, log, most
        self._about, self._weight, self._count, self._every_s = about, weight, count, every_s
        self._close, self._namespace = close, namespace
        self._going: list[int] = []  # the places of the records that are dropped now, the first last
        self._lock = threading.Lock()
        limits = OutboxLimits[R](
            batch=lambda _: together,
            spare=self._spare,
            pause_ms=lambda _: 0,
            gives_up=True,
        )
        self._outbox = Outbox(limits, self._notice)
        self._is_dropping = False
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))

    def add(self, record: R) -> None:
        """Never waits for more than another thread's step."""
        with self._lock:
            self._outbox.add(record)

    def run(self, stop: threading.Event) -> None:
        """Send what waits, each ``every_s``, until ``stop``; then what is left, until a post fails."""
        while not stop.wait(self._every_s):
            while self.send() and not stop.is_set():
                pass
        while self.send():
            pass
        self._close()

    def send(self) -> bool:
        """Send the oldest that wait. True if more wait, and it did not fail."""
        with self._lock:
            post = self._outbox.next(0)
            if post is None:
                return False
            self._outbox.start()
        failure = self._post(post.records)
        with self._lock:
            self._outbox.on_posted(failure, 0)
            return self._outbox.post is None and bool(self._outbox.waiting)

    def _spare(self, waiting: Sequence[R]) -> int | None:
        is_full, namespace = len(waiting) > self._most, self._namespace
        if namespace is None:
            return 0 if is_full else None
        if is_full:
            ((whose, _),) = Counter(map(namespace, waiting)).most_common(1)
            places = (place for place, record in enumerate(waiting) if namespace(record) == whose)
            going = islice(places, 1 + self._most // 100)
            self._going = [place - gone for gone, place in enumerate(going)][::-1]
        return self._going.pop() if self._going else None

    def _notice(self, result: Result, records: Sequence[R], reason: str) -> None:
        if result == "away":
            self._log(self._events.failed, level="warning", error=reason)
        elif result == "back":
            self._log(self._events.sent)
        elif result == "refused":
            self._log(self._events.refused, level="error", **self._about(records[0]), error=reason)
        elif result == "dropped" and not self._is_dropping:
            self._log(self._events.dropped, level="warning", waiting=self._most)
            self._is_dropping = True
        elif result == "sent":
            self._is_dropping &= bool(self._outbox.waiting)
        if result in RESULTS:
            number = sum(map(self._weight, records)) if records else 1  # a failure is one of a post
            self.results[result] += number
            self._count(result, number)
