"""Posts decisions to the timekeeper, in batches.

They wait in memory: no decision waits for a post, and those still unsent when the process ends are lost. A
post whose answer is lost is sent again; its decisions then count twice.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Literal

import orjson

from timekeeper.core.decisions import Decision, DecisionRun, decision_entry
from timekeeper.core.wire import Decisions
from timekeeper.edge.log_events import EventLog, LogEvent
from timekeeper.runtime.timekeeper_client import FAILURES, PostRefusedError, TimekeeperClient

MAX_WAITING = 10_000


class _Run:
    """A `DecisionRun` that still grows."""

    __slots__ = ("count", "decision", "last_ms")

    def __init__(self, decision: Decision) -> None:
        self.decision, self.count, self.last_ms = decision, 1, decision.at_ms


class DecisionBuffer:
    """Any thread may add; one thread takes."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._runs: deque[_Run] = deque()
        self._last: dict[tuple[str, str], _Run] = {}  # of each subject
        self._dropped = 0  # lost because too many waited

    def add(self, decision: Decision) -> None:
        """Never waits for more than another thread's step. If too many wait, the oldest is dropped."""
        subject = decision.subject
        with self._lock:
            last = self._last.get(subject)
            if last is not None and last.decision.repeats(decision):
                last.count += 1
                last.last_ms = max(last.last_ms, decision.at_ms)
                return
            if len(self._runs) >= self._most:
                self._dropped += self._pop().count
            run = self._last[subject] = _Run(decision)
            self._runs.append(run)

    def take(self, most: int) -> list[DecisionRun]:
        """Remove the oldest, at most ``most``."""
        with self._lock:
            runs = [self._pop() for _ in range(min(most, len(self._runs)))]
        return [DecisionRun(run.decision, run.count, run.last_ms) for run in runs]

    def take_dropped(self) -> int:
        """How many were dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            return dropped

    def __len__(self) -> int:
        return len(self._runs)

    def _pop(self) -> _Run:
        run = self._runs.popleft()
        if self._last.get(run.decision.subject) is run:
            del self._last[run.decision.subject]
        return run


# called with the result of a batch that is done with, and the reason why a single record is given up; returns
# whether more records wait
Ended = Callable[[Literal["sent", "refused"], str], bool]


class BatchPoster:
    """For one thread. ``most``: records in one post; ``failing``: called with the error when posts begin to
    fail, and with "" when they succeed again; ``failed``: called for each post that fails."""

    def __init__(
        self,
        client: TimekeeperClient,
        most: int,
        failing: Callable[[str], None],
        failed: Callable[[], None],
    ) -> None:
        self._client, self._most, self._failing, self._failed = client, most, failing, failed
        self._is_failing = False
        self.size = most  # of the next batch

    def post(self, body: bytes, number: int, ended: Ended) -> bool:
        """Post a body that carries `number` records. True if another post should follow at once: more records
        wait, or half of these. Without a usable answer they are posted again later."""
        try:
            self._client.post(body)
        except PostRefusedError as error:
            if number > 1:
                self.size = number // 2
                return True
            self._grow()
            return ended("refused", str(error))
        except FAILURES as error:
            if not self._is_failing:
                self._failing(f"{type(error).__name__}: {error}")
            self._is_failing = True
            self._failed()
            return False
        if self._is_failing:
            self._failing("")
        self._is_failing = False
        self._grow()
        return ended("sent", "")

    def _grow(self) -> None:
        self.size = min(self._most, 2 * self.size)


PATH = "/v1/decisions"
TOGETHER = 200  # records in one post
INTERVAL_S = 1.0
RESULTS = ("sent", "dropped", "refused", "failed")
# for the help of metrics
RESULTS_MEAN = (
    "reported to the timekeeper: `sent`, `dropped` (more than 10,000 waited), `refused` (the timekeeper will "
    "never take it, see the log); and posts that `failed` and are repeated"
)


class DecisionPosts:
    """`record` may be called from any thread; `run` sends, in one thread. ``source``: the role;
    ``now_ms``: the clock of the decisions' times; ``count``: called with a result and how many."""

    def __init__(
        self,
        client: TimekeeperClient,
        source: str,
        now_ms: Callable[[], int],
        log: EventLog[LogEvent],
        count: Callable[[str, int], None] = lambda _result, _number: None,
    ) -> None:
        self._client, self._source, self._now_ms, self._log = client, source, now_ms, log
        self._count = count
        self._buffer = DecisionBuffer()
        self._taken: list[DecisionRun] = []  # of the thread that sends: not yet accepted
        self._poster = BatchPoster(client, TOGETHER, self._log_failing, lambda: self._counted("failed", 1))
        self._counts: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))

    def record(self, decision: Decision) -> None:
        """See `timekeeper.core.decisions.Record`."""
        self._buffer.add(decision)

    def results(self) -> dict[str, int]:
        """Decisions by result; ``failed`` counts posts, which are repeated."""
        return dict(self._counts)

    def run(self, stop: threading.Event) -> None:
        """Send what waits, each second, until ``stop``; then once more."""
        while not stop.wait(INTERVAL_S):
            while self.send() and not stop.is_set():
                pass
        self.send()
        self._client.close()

    def send(self) -> bool:
        """Send the oldest that wait; they stay if that fails. Of a post that the timekeeper refuses half is
        sent alone, and a single record is given up. True if more wait and it did not fail."""
        if dropped := self._buffer.take_dropped():
            self._counted("dropped", dropped)
        if not self._taken:
            self._taken = self._buffer.take(TOGETHER)
        first = self._taken[: self._poster.size]
        if not first:
            return False
        return self._poster.post(self._body(first), len(first), partial(self._ended, first))

    def _log_failing(self, error: str) -> None:
        if error:
            self._log("decisions-failed", level="warning", error=error)
        else:
            self._log("decisions-sent")

    def _ended(self, first: list[DecisionRun], result: str, error: str) -> bool:
        if result == "refused":
            self._log("decision-refused", level="error", kind=first[0].decision.kind, error=error)
        self._taken = self._taken[len(first) :]
        self._counted(result, sum(each.count for each in first))
        return bool(self._taken) or len(self._buffer) > 0

    def _counted(self, result: str, number: int) -> None:
        self._counts[result] += number
        self._count(result, number)

    def _body(self, first: list[DecisionRun]) -> bytes:
        now_ms = self._now_ms()
        entries = [decision_entry(each, now_ms) for each in first]
        body: Decisions = {"version": 1, "source": self._source, "decisions": entries}
        return orjson.dumps(body)
