"""gunicorn's worker for the extender: a thread for each connection.

kube-scheduler has a few connections, each with one call on it at a time. gunicorn's own threads take every
request out of one loop and give the connection back to it, which costs more than most answers do, and twice
a wait for the interpreter's lock. Here a thread stays with its connection. kube-scheduler's calls are
answered by ``app.calls`` at once; all else by the WSGI application, in gunicorn's own way. A request must
tell its length, as kube-scheduler's do.
"""

import io
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

from gunicorn import http, util
from gunicorn.http import wsgi
from gunicorn.sock import ssl_wrap_socket
from gunicorn.workers.base import Worker

from scheduler_ext.serving.connection import FIRST_WORD_S, Calls, Connection, RefusedError, Request, Said
from scheduler_ext.verbs.protocol import MOST_BODY_BYTES

MOST_CONNECTIONS = 512
SPARE = 16  # threads that wait for the next caller
LOOK_EVERY_S = 0.5
LINGER_S = 3.0  # for calls that are being answered when the end comes


class ConnectionWorker(Worker):  # type: ignore[misc]
    """Serves ``app.calls``, and for all else the WSGI application that gunicorn has loaded."""

    def run(self) -> None:
        """Serves until told to stop; then lets the calls end that are being answered."""
        self._calls: Calls = self.app.calls
        self._binds = threading.BoundedSemaphore(self.cfg.threads)  # the rest waits for nobody
        self._lock = threading.Lock()
        self._threads, self._waiting, self._busy = 0, 0, 0
        for listener in self.sockets:
            listener.setblocking(True)
            self._one_more(listener)
        while self.alive and self.ppid == os.getppid():
            self.notify()
            if select.select([self.PIPE[0]], [], [], LOOK_EVERY_S)[0]:
                os.read(self.PIPE[0], 4096)
        until = time.monotonic() + LINGER_S
        while self._busy and time.monotonic() < until:
            time.sleep(0.01)

    def handle_exit(self, sig: int, frame: object) -> None:
        """SIGTERM: the pipe wakes the loop."""
        self.alive = False

    def _one_more(self, listener: socket.socket) -> None:
        self._threads += 1
        self._waiting += 1
        threading.Thread(target=self._take_callers, args=(listener,), daemon=True).start()

    def _take_callers(self, listener: socket.socket) -> None:
        """A thread's life: one caller after another. There is always one more that waits for the next, also
        where a call ends its thread."""
        try:
            while self.alive and self._take_caller(listener):
                pass
        finally:
            with self._lock:
                self._threads -= 1
                if self.alive and not self._waiting:
                    self._one_more(listener)

    def _take_caller(self, listener: socket.socket) -> bool:
        """Serves the next caller; False where enough others wait for the one after."""
        try:
            sock, client = listener.accept()
        except OSError:
            return True  # it has left
        with self._lock:
            self._waiting -= 1
            if not self._waiting and self._threads < MOST_CONNECTIONS:
                self._one_more(listener)
        self._keep(sock, client)
        with self._lock:
            spare = self._waiting >= SPARE
            self._waiting += not spare
        return not spare

    def _keep(self, sock: socket.socket, client: Any) -> None:
        """A connection's life."""
        try:
            sock.settimeout(FIRST_WORD_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.cfg.is_ssl:
                sock = ssl_wrap_socket(sock, self.cfg)
            self._serve(Connection(sock, client, MOST_BODY_BYTES))
        except OSError as error:
            self.log.debug("a caller left: %s", error)
        finally:
            sock.close()

    def _serve(self, connection: Connection) -> None:
        try:
            while self.alive and (request := connection.request()) is not None:
                with self._answering():
                    if not self._answer(connection, request):
                        break
        except RefusedError as refused:
            util.write_error(connection.sock, *refused.args)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    def _answer(self, connection: Connection, request: Request) -> bool:
        """Answers one request; False where the connection ends with it."""
        call = self._calls.get(request.path)
        if call is None:
            return self._answer_other(connection, request)
        try:
            with self._binds if request.path == "/bind" else nullcontext():
                said = call(request.body)
        except Exception as error:
            self.handle_error(None, connection.sock, connection.client, error)
            return False
        ends = not self.alive or self.app.sends_away()  # a kept connection would lead here for ever
        connection.send(_head(said, ends) + said.body)
        return not ends

    def _answer_other(self, connection: Connection, request: Request) -> bool:
        sock, parsed = connection.sock, None
        try:
            whole = [request.head + request.body]
            parsed = next(http.get_parser(self.cfg, whole, connection.client))
            response, environ = wsgi.create(parsed, sock, connection.client, sock.getsockname(), self.cfg)
            environ["wsgi.input"] = io.BytesIO(request.body)
            if not self.alive:
                response.force_close()
            self._respond(response, environ)
            return not response.should_close()
        except Exception as error:
            self.handle_error(parsed, sock, connection.client, error)
            return False

    def _respond(self, response: Any, environ: dict[str, Any]) -> None:
        body = self.wsgi(environ, response.start_response)
        try:
            for part in body:
                response.write(part)
            response.close()
        finally:
            if hasattr(body, "close"):
                body.close()


def _head(said: Said, ends: bool) -> bytes:
    """The head of a whole answer. The words are ours, so nothing in them is checked."""
    connection = "close" if ends else "keep-alive"
    return (
        f"HTTP/1.1 {said.status.value} {said.status.phrase}\r\n"
        f"Date: {_date(int(time.time()))}\r\nConnection: {connection}\r\n"
        f"Content-Type: {said.kind}\r\nContent-Length: {len(said.body)}\r\n\r\n"
    ).encode("ascii")


@lru_cache(maxsize=1)
def _date(_second: int) -> str:
    return str(util.http_date())
