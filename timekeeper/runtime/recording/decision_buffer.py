"""Decisions that wait to be written or posted: bounded, with equal ones in succession as one."""

import threading
from collections import deque

from timekeeper.core.decisions import Decision, DecisionRun

MOST_WAITING = 10_000


class _Run:
    """A `DecisionRun` that still grows."""

    __slots__ = ("count", "decision", "last_ms")

    def __init__(self, decision: Decision) -> None:
        self.decision, self.count, self.last_ms = decision, 1, decision.at_ms


class DecisionBuffer:
    """Any thread may add; one thread takes."""

    def __init__(self, most: int = MOST_WAITING) -> None:
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
