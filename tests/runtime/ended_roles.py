"""A role that is sent a signal at each line of one of its waits, in turn: ``python -m
tests.runtime.ended_roles ROLE SIGNAL FOLDER``. Prints the line's number and the exit code each time the role
ends. If it does not end in time, the process exits with 1 and the stacks of all threads."""

import faulthandler
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from deploy.local.limits import LONGEST_S
from sidecar import event_loop
from sidecar.event_loop import End, EventLoop
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from timekeeper.process import supervisor
from timekeeper.serving import gunicorn_app
from timekeeper.settings import read
from timekeeper.settler import process
from timekeeper.settler.process import settle
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade
from webhook.controller.run import run
from webhook.settings.certificates import read_certificates

WAIT_MS = 100
WAITS = [
    method.__code__ for method in (threading.Event.wait, threading.Event.set, queue.Queue.get, EventLoop.wait)
]
MODULES = {threading.__file__, queue.__file__, event_loop.__file__}

Role = Callable[[Path], int]


class SignalAtLine:
    """A trace function of the main thread. ``callers``: functions that call a wait, in the order in which
    the role calls them. The process is sent ``number`` at the first line of the wait of each of them but the
    last, and when ``line`` lines of the last one's wait have begun. ``has_ended``: it had fewer lines, and
    the signal was sent at its end."""

    def __init__(self, number: int, callers: tuple[str, ...], line: int) -> None:
        self._number, self._callers, self._line = number, list(callers), line
        self._wait: FrameType | None = None
        self._lines_begun = 0
        self.has_ended = False

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        """Called by the interpreter at each call of a function."""
        caller = frame.f_back.f_code.co_name if frame.f_back else ""
        if self._wait is None and frame.f_code in WAITS and [caller] == self._callers[:1]:
            self._wait = frame
        is_part = self._wait is not None and frame.f_code.co_filename in MODULES
        return self._in_wait if is_part else None

    def _in_wait(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        if self._wait is None:
            return self._in_wait
        is_last = len(self._callers) == 1
        self._lines_begun += event == "line"
        self.has_ended = event == "return" and frame is self._wait
        if self.has_ended or self._lines_begun == (self._line if is_last else 1):
            self._wait, self._lines_begun = None, 0
            self._callers.pop(0)
            os.kill(os.getpid(), self._number)
        return self._in_wait


def supervised(prepares: bool) -> Role:
    """The supervisor; each of its children sleeps, the one that prepares only if ``prepares``."""

    def serve(folder: Path) -> int:
        sleeps = lambda *_: time.sleep(LONGEST_S)  # noqa: E731
        supervisor.prepare = sleeps if prepares else lambda _: None  # type: ignore[assignment]
        gunicorn_app.serve = process.settle = sleeps  # type: ignore[assignment]
        certificate = folder / "tls.crt"
        certificate.touch()
        flags = ["--listen=127.0.0.1:0", f"--tls-cert={certificate}", f"--tls-key={certificate}"]
        return supervisor.serve(read(flags, {}))

    return serve


def settling(database: str) -> Role:
    """The settler; its API server answers on SQLite alone, where it so knows its cluster and begins."""

    def settle_once(folder: Path) -> int:
        url = database.format(folder=folder)
        if url.startswith("sqlite"):
            store = open_store(url)
            upgrade(store)
            store.close()
            with serving(FakeApiServer()) as server:
                return settled(url, folder, server)
        return settled(url, folder, "http://127.0.0.1:1")

    def settled(url: str, folder: Path, server: str) -> int:
        flags = [f"--database={url}", f"--kubeconfig={kubeconfig(folder, server)}"]
        return settle(read(["settle", *flags, "--lease-duration=15s"], {}), "me")

    return settle_once


def certified(folder: Path) -> int:
    """The process of the certificates; its API server does not answer."""
    flags = [f"--kubeconfig={kubeconfig(folder, 'http://127.0.0.1:1')}", "--every=1"]
    return run(read_certificates(flags, {}))


def observed(_folder: Path) -> int:
    """The loop of sidecar and node agent."""
    loop = EventLoop()
    while not isinstance(loop.wait(WAIT_MS), End):
        continue
    return 0


ROLES: dict[str, tuple[Role, tuple[str, ...]]] = {
    "a supervisor that prepares": (supervised(prepares=True), ("prepare",)),
    "a supervisor that watches": (supervised(prepares=False), ("watch",)),
    "a settler that follows": (settling("postgresql://bursar@127.0.0.1:1/bursar"), ("wait",)),
    "a settler that settles": (settling("sqlite:///{folder}/bursar.db"), ("_receive",)),
    "a settler that ends": (settling("sqlite:///{folder}/bursar.db"), ("_receive", "_settle")),
    "the certificates' process": (certified, ("run",)),
    "a sidecar or a node agent": (observed, ("observed",)),
}


def main(name: str, number: int, folder: Path) -> None:
    """One role, until its wait has no further line."""
    role, callers = ROLES[name]
    line, has_ended = 0, False
    while not has_ended:
        line += 1
        faulthandler.dump_traceback_later(LONGEST_S, exit=True)
        trace = SignalAtLine(number, callers, line)
        sys.settrace(trace)
        code = role(folder)
        sys.settrace(None)
        has_ended = trace.has_ended
        print(line, code, flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1], signal.Signals[sys.argv[2]], Path(sys.argv[3]))
