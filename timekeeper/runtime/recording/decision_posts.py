"""Decisions on their way to the ledger: equal ones in succession wait as one, in memory."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import orjson

from timekeeper.core.decisions import Decision, DecisionRun, decision_entry
from timekeeper.edge.log_events import EventLog, LogEvent
from timekeeper.edge.memory_outbox import MemoryOutbox, OutboxEvents
from timekeeper.edge.outbox import NotDelivered, Result
from timekeeper.edge.timekeeper_client import TimekeeperClient

E = TypeVar("E", bound=str)

MAX_WAITING = 10_000


class _Run:
    """A `DecisionRun` that still grows."""

    __slots__ = ("count", "decision", "last_ms")

    def __init__(self, decision: Decision) -> None:
        self.decision, self.count, self.last_ms = decision, 1, decision.at_ms


class DecisionOutbox(MemoryOutbox[_Run]):
    """`record` may be called from any thread. ``write`` takes runs, and returns why that failed. ``exists``:
    whether there is such a namespace; decisions of others are neither written nor counted."""

    def __init__(
        self,
        write: Callable[[Sequence[DecisionRun]], NotDelivered | None],
        events: OutboxEvents[E],
        log: EventLog[E],
        *,
        together: int,
        count: Callable[[str, int], None],
        close: Callable[[], None] = lambda: None,
        every_s: float = 1.0,
        most: int = MAX_WAITING,
        exists: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._last: dict[tuple[str, str], _Run] = {}  # of each subject; it waits

        def namespace(run: _Run) -> str:
            return run.decision.namespace if exists(run.decision.namespace) else ""

        def send(runs: Sequence[_Run]) -> NotDelivered | None:
            written = [DecisionRun(run.decision, run.count, run.last_ms) for run in runs if namespace(run)]
            return write(written) if written else None

        super().__init__(
            send,
            events,
            log,
            most=most,
            together=together,
            about=lambda run: {"kind": run.decision.kind},
            weight=lambda run: run.count if namespace(run) else 0,
            namespace=namespace,
            count=count,
            close=close,
            every_s=every_s,
        )

    def record(self, decision: Decision) -> None:
        """See `timekeeper.core.decisions.Record`."""
        with self._lock:
            last = self._last.get(decision.subject)
            if last is not None and last.decision.repeats(decision):
                last.count += 1
                last.last_ms = max(last.last_ms, decision.at_ms)
                return
            run = self._last[decision.subject] = _Run(decision)
            self._outbox.add(run)

    def _notice(self, result: Result, records: Sequence[_Run], reason: str) -> None:
        if result in ("taken", "dropped"):
            for run in records:
                if self._last.get(run.decision.subject) is run:
                    del self._last[run.decision.subject]
        super()._notice(result, records, reason)


PATH = "/v1/decisions"
TOGETHER = 200  # records in one post
# for the help of metrics
RESULTS_MEAN = (
    "reported to the timekeeper: `sent`, `dropped` (more than 10,000 waited), `refused` (the timekeeper will "
    "never take it, see the log); and posts that `failed` and are repeated"
)
_EVENTS = OutboxEvents[LogEvent](
    "decisions-failed", "decisions-sent", "decision-refused", "decisions-dropped"
)


class DecisionPosts(DecisionOutbox):
    """Posts decisions to the timekeeper. A post whose answer is lost is sent again; its decisions then count
    twice. ``source``: the role; ``now_ms``: the clock of the decisions' times; ``count``: as in
    `MemoryOutbox`; ``exists``: as in `DecisionOutbox`."""

    def __init__(
        self,
        client: TimekeeperClient,
        source: str,
        now_ms: Callable[[], int],
        log: EventLog[LogEvent],
        count: Callable[[str, int], None] = lambda _result, _number: None,
        exists: Callable[[str], bool] = lambda _: True,
    ) -> None:
        def post(runs: Sequence[DecisionRun]) -> NotDelivered | None:
            at_ms = now_ms()
            entries = [decision_entry(run, at_ms) for run in runs]
            body = {"version": 1, "source": source, "decisions": entries}
            return client.deliver(orjson.dumps(body))

        super().__init__(
            post, _EVENTS, log, together=TOGETHER, count=count, close=client.close, exists=exists
        )
