"""One simulation after another, each in a child process, on a copy of this process' memory: bounded in time,
and of the lowest priority, so that the verbs go on beside it.

The fork copies page tables, not pages. The child has one thread, and takes no lock that another thread of
the parent might have held: it computes on immutable values and writes to a pipe.
"""

import ctypes
import gc
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock

from scheduler_ext.log import Log
from scheduler_ext.model.pod import Pod
from scheduler_ext.simulation.bodies import Asked, answer_of, read_simulation
from scheduler_ext.simulation.simulate import SimulationInput, simulate

# Called with the result of each simulation: done, busy, or ended
Counted = Callable[[str], object]

_MAX_RESULT = 16 * 1024 * 1024
_SET_PARENT_DEATH_SIGNAL = 1  # prctl(2)
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl


class Simulator:
    """``books``: the state of this moment, in which the pods are protected that the simulation names."""

    def __init__(
        self, books: Callable[[Asked], SimulationInput], timeout_ms: int, log: Log, counted: Counted
    ) -> None:
        self._books, self._log, self._counted = books, log, counted
        self._child = ChildProcess(timeout_ms / 1000)

    def __call__(self, body: bytes) -> bytes:
        """The answer to a body. Raises a Problem for a bad one, BusyError, or ChildError."""
        asked = read_simulation(body)
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


class BusyError(Exception):
    """Another computation is running."""


class ChildError(Exception):
    """The child was ended, or failed. The text is a sentence for the caller."""


class ChildProcess:
    """Runs one computation at a time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s, self._one = timeout_s, Lock()

    def run(self, work: Callable[[], bytes]) -> bytes:
        """What ``work`` returns in the child. Raises BusyError or ChildError."""
        if not self._one.acquire(blocking=False):
            raise BusyError
        try:
            return self._run(work)
        finally:
            self._one.release()

    def _run(self, work: Callable[[], bytes]) -> bytes:
        reading, writing = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                _be_child(work, writing, self._timeout_s)
        except OSError as error:
            os.close(reading)
            raise ChildError(f"no process could be started: {error.strerror}") from error
        finally:
            os.close(writing)
        try:
            result, is_late = _read(reading, time.monotonic() + self._timeout_s)
        finally:
            os.close(reading)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # also one that has written all: it has nothing else to do
            _, status = os.waitpid(pid, 0)
        if is_late:
            raise ChildError(f"it took longer than {self._timeout_s:g} s and was ended")
        if not result.endswith(b"\n"):
            code = os.waitstatus_to_exitcode(status)
            raise ChildError(f"its process ended with code {code}; the log has the details")
        return result[:-1]


def _read(reading: int, until: float) -> tuple[bytes, bool]:
    """All that the child writes; True if it did not end in time."""
    found = bytearray()
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        left_s = until - time.monotonic()
        if left_s <= 0 or not poll.poll(1000 * left_s):
            return b"", True
        part = os.read(reading, 1024 * 1024)
        if not part or len(found) > _MAX_RESULT:
            return bytes(found), False
        found += part


def _be_child(work: Callable[[], bytes], writing: int, timeout_s: float) -> None:
    """In the child; never returns."""
    code = 1
    try:
        _bound(writing, timeout_s)
        left = memoryview(work() + b"\n")
        while left:
            left = left[os.write(writing, left) :]
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _bound(writing: int, timeout_s: float) -> None:
    _PRCTL(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    gc.disable()  # it would touch, and so copy, every object
    os.nice(19)
    with suppress(OSError):  # where the kernel runs out of memory, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    seconds = int(timeout_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    os.closerange(3, writing)  # a connection that the parent closes must not live on here
    os.closerange(writing + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
