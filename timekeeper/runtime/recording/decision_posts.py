"""Posts decisions to the timekeeper, in batches.

They wait in memory: no decision waits for a post, and those still unsent when the process ends are lost. A
post whose answer is lost is sent again; its decisions then count twice.
"""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import orjson

from timekeeper.core.decisions import Decision, DecisionRun, decision_entry
from timekeeper.core.wire import Decisions
from timekeeper.runtime.log import Log
from timekeeper.runtime.recording.batch_poster import BatchPoster
from timekeeper.runtime.recording.decision_buffer import DecisionBuffer
from timekeeper.runtime.timekeeper_client import TimekeeperClient

PATH = "/v1/decisions"
TOGETHER = 200  # records in one post
EACH_S = 1.0
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
        log: Log,
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
        while not stop.wait(EACH_S):
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
