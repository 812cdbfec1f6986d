"""One simulation after another, each of a moment's state, in a child process."""

import time
from collections.abc import Callable
from functools import partial

from scheduler_ext.model.pod import Pod
from scheduler_ext.simulation.bodies import Asked, answer_of, read_simulation
from scheduler_ext.simulation.child import BusyError, ChildError, ChildProcess
from scheduler_ext.simulation.simulate import SimulationInput, simulate
from timekeeper.runtime.clock import monotonic_ms
from timekeeper.runtime.log import Log

# Called with the result of each simulation: done, busy, or ended
Counted = Callable[[str], object]


class Simulator:
    """``books``: the state of this moment under the standings that the simulation asks for."""

    def __init__(
        self, books: Callable[[Asked], SimulationInput], timeout_ms: int, log: Log, counted: Counted
    ) -> None:
        self._books, self._log, self._counted = books, log, counted
        self._child = ChildProcess(timeout_ms / 1000)

    def __call__(self, body: bytes) -> bytes:
        """The answer to a body. Raises a Problem for a bad one, BusyError, or ChildError."""
        asked = read_simulation(body, monotonic_ms())
        began = time.perf_counter()
        try:
            answer = self._child.run(partial(_answer, asked.pods, self._books(asked)))
        except BusyError:
            self._counted("busy")
            raise
        except ChildError as error:
            self._counted("ended")
            self._log("simulation-ended", level="warning", pods=len(asked.pods), error=error)
            raise
        self._counted("done")
        ms = 1000 * (time.perf_counter() - began)
        self._log("simulated", level="info", pods=len(asked.pods), ms=f"{ms:.0f}")
        return answer


def _answer(pods: tuple[Pod, ...], books: SimulationInput) -> bytes:
    return answer_of(simulate(pods, books), books.standings)
