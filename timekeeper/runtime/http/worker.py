"""gunicorn's worker for all our servers: one loop for each of its listeners."""

import os
import socket
import threading
from contextlib import ExitStack

from gunicorn.workers.base import Worker

from timekeeper.runtime.http.connection_balance import ConnectionBalance
from timekeeper.runtime.http.loop import LINGER_S, HttpLoop
from timekeeper.runtime.http.service import HttpService
from timekeeper.runtime.log import log_exception


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
