"""Writes the settler's own decisions to the ledger, in a thread beside the settler's."""

from threading import Event, Lock

from timekeeper import metrics
from timekeeper.core.decisions import Decision, DecisionRun
from timekeeper.runtime.log import log
from timekeeper.runtime.recording.decision_buffer import DecisionBuffer
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.writes import decisions
from timekeeper.store.writes.decisions import SOURCE

EACH_S = 0.5
_TOGETHER = 500


class DecisionRecorder:
    """`record` may be called from any thread and never waits; `run` writes, in one thread. What was
    decided in a term that is over is written too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._buffer = DecisionBuffer()
        self._taken: list[DecisionRun] = []
        self._writing = Lock()
        self._is_failing = False

    def record(self, decision: Decision) -> None:
        """See `timekeeper.core.decisions.Record`."""
        self._buffer.add(decision)

    def run(self, stop: Event) -> None:
        """Write what waits, twice a second, until ``stop``; then once more."""
        while not stop.wait(EACH_S):
            self.write()
        self.write()

    def write(self) -> bool:
        """Write all that waits, before returning. False if the database is away: then it waits on."""
        with self._writing:
            metrics.DECISIONS_DROPPED.inc(self._buffer.take_dropped())
            while self._taken or len(self._buffer):
                self._taken = self._taken or self._buffer.take(_TOGETHER)
                try:
                    with self._store.writing() as connection:
                        decisions.record(connection, SOURCE, self._taken)
                except (UnavailableError, ConflictError) as error:
                    if not self._is_failing:
                        log("decisions-not-written", level="warning", error=error)
                    self._is_failing = True
                    return False
                metrics.DECISIONS.labels(SOURCE).inc(sum(each.count for each in self._taken))
                self._taken, self._is_failing = [], False
            return True
