"""gunicorn's master and its workers around one `HttpService`."""

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gunicorn import glogging
from gunicorn.app.base import BaseApplication
from gunicorn.workers.base import Worker

from timekeeper.edge.families import listening_family, take_both
from timekeeper.edge.log import line, log_exception
from timekeeper.runtime.http.acceptor import ConnectionBalance
from timekeeper.runtime.http.loop import LINGER_S, HttpLoop
from timekeeper.runtime.http.service import HttpService


class HttpWorker(Worker):  # type: ignore[misc]
    """Serves ``app.service`` (an `HttpService`) on the listeners; the workers share ``app.balance``. Each of
    ``app.service.beside`` has the next of the last listeners, and a thread with a loop of its own: its
    clients use up no bounds of the service itself."""

    def run(self) -> None:
        """Called by gunicorn. Serves until SIGTERM, then answers what has begun, for LINGER_S at most."""
        service: HttpService = self.app.service
        own = len(self.sockets) - len(service.beside)
        with ExitStack() as beside:
            for each, listener in zip(service.beside, self.sockets[own:], strict=True):
                beside.callback(self._serve_beside(each, listener).join, LINGER_S + 1)
            HttpLoop(
                service,
                self.sockets[:own],
                self.PIPE,
                self._is_wanted,
                self.app.balance,
                self.age,
                self.notify,
            ).run()

    def _is_wanted(self) -> bool:
        return bool(self.alive) and self.ppid == os.getppid()

    def _serve_beside(self, service: HttpService, listener: socket.socket) -> threading.Thread:
        pipe = os.pipe()
        for end in pipe:
            os.set_blocking(end, False)
        loop = HttpLoop(service, [listener], pipe, self._is_wanted, ConnectionBalance(), self.age)
        thread = threading.Thread(target=_run, args=(loop,), name="beside", daemon=True)
        thread.start()
        return thread


def _run(loop: HttpLoop) -> None:
    try:
        loop.run()
    except BaseException as error:
        log_exception("uncaught", error, thread="beside")
        raise


_LEVELS = {"CRITICAL": "error", "ERROR": "error", "WARNING": "warning"}


class LineFormatter(logging.Formatter):
    """A library's record as the event ``server``: its message and, on the same line, its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Called by the logging library."""
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        level = _LEVELS.get(record.levelname, "info")
        return line(level, "server", {"message": record.getMessage()}, trace)


class ServerLogger(glogging.Logger):  # type: ignore[misc]
    """What `gunicorn` is given as its ``logger_class``."""

    def setup(self, cfg: Any) -> None:
        """Called by gunicorn."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(LineFormatter())


_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 a folder in memory, if there is one


class HttpServer(BaseApplication):  # type: ignore[misc]
    """``run()`` serves until SIGTERM. ``make_service`` is called in each worker, after the fork;
    ``options`` are gunicorn's; ``worker_ended`` is called in the master with the worker's process ID."""

    def __init__(
        self,
        make_service: Callable[[], HttpService],
        options: dict[str, Any],
        *,
        balance: ConnectionBalance | None = None,
        worker_ended: Callable[[int], object] = lambda _pid: None,
    ) -> None:
        self._make_service, self._options, self._worker_ended = make_service, options, worker_ended
        self.balance = balance or ConnectionBalance()
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        common: dict[str, Any] = {
            "worker_class": HttpWorker,
            # on a slow disk the workers' signs of life would come late, and they would be killed
            "worker_tmp_dir": _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None,
            "loglevel": "warning",
            "logger_class": ServerLogger,
            "graceful_timeout": 5,
            "timeout": 60,
            "control_socket_disable": True,
            "child_exit": self._ended,
        }
        for name, value in (common | self._options).items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Called by gunicorn in each worker, after the fork."""
        self.service = self._make_service()
        return self.service.app

    def _ended(self, _arbiter: object, worker: Any) -> None:
        self.balance.leave(worker.age)
        self._worker_ended(worker.pid)


_BACKLOG = 2048
_PATIENCE_S = 3.0  # the workers of a server that was killed hold its socket for a moment longer
_LOOK_INTERVAL_S = 0.05


class CannotListenError(Exception):
    """The address cannot be listened on; the text is a sentence for the operator."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises CannotListenError; where the port is in use, after waiting for it."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                sentence = f"cannot listen on {host}:{port}: {error.strerror or error}"
                raise CannotListenError(sentence) from error
        time.sleep(_LOOK_INTERVAL_S)


def _listen(host: str, port: int) -> socket.socket:
    family, host = listening_family(host)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        take_both(listener, host)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
