"""The loop of all our servers, which never waits for a client.

The loop accepts connections, does their TLS handshakes, receives whole requests within bounds
(`framing`) and sends answers, each as far as the socket allows. A handler of the loop answers at once; a
handler that waits has a thread of a bounded pool, which gets a request only when it is whole. A client that
is silent or slow, or stops in the middle of a head or a body, holds no thread.
"""

import os
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from timekeeper.runtime.http.connection import WOULD_BLOCK, HttpConnection
from timekeeper.runtime.http.connection_balance import ConnectionBalance
from timekeeper.runtime.http.framing import RejectedRequestError
from timekeeper.runtime.http.service import Handler, HttpAnswer, HttpRequest, HttpService
from timekeeper.runtime.http.wsgi_gateway import wsgi_handler
from timekeeper.runtime.log import log, log_exception

RECEIVES_A_TURN = 64  # of one connection; then the others have their turn
LINGER_S = 3.0  # on a graceful stop, for requests that are being sent or answered

_IDLE_LINGER_S = 2.0  # on a graceful stop, for requests that may be on their way on an idle connection
_LAST_ANSWER_S = 3.0  # for a client to read the last answer of a connection, and to stop sending
_CLOCK_EVERY_S = 0.5
_LEFT_TO_OTHERS_S = 0.005  # how long a client waits for a worker that has fewer connections but may hang

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Pool(NamedTuple):
    handler: Handler
    threads: ThreadPoolExecutor | None


class HttpLoop:
    """Serves one service on its listeners, in the thread that calls `run`."""

    def __init__(
        self,
        service: HttpService,
        listeners: Sequence[socket.socket],
        pipe: tuple[int, int],
        is_alive: Callable[[], bool],
        balance: ConnectionBalance,
        number: int,
        notify: Callable[[], object] = lambda: None,
    ) -> None:
        """``pipe``: not blocking; a byte in it wakes the loop. ``is_alive``: False once it should end.
        ``number``: of this process in ``balance``. ``notify``: called at least each second."""
        self._service, self._limits = service, service.limits
        self._listeners, self._pipe, self._is_alive = listeners, pipe, is_alive
        self._balance, self._number, self._notify = balance, number, notify
        self._poller = selectors.DefaultSelector()
        self._connections: set[HttpConnection] = set()
        self._unanswered_bytes = 0
        self._left_to_others: list[socket.socket] = []  # listeners, for a moment
        self._clock_at = 0.0  # when deadlines are looked at again
        self._finished: deque[tuple[HttpConnection, bool, HttpAnswer | None]] = deque()
        self._wake_is_sent = False
        self._app_threads = _threads(service.app_threads)
        self._others = _Pool(wsgi_handler(service.app, "https" if service.tls else "http"), self._app_threads)
        self._routes = {
            (each.method, each.path): _Pool(each.handler, _threads(each.threads) if each.threads else None)
            for each in service.routes
        }

    def run(self) -> None:
        """Serves until `is_alive` is False, then answers what has begun, for LINGER_S at most."""
        self._poller.register(self._pipe[0], selectors.EVENT_READ, self._finish_answers)
        for listener in self._listeners:
            listener.setblocking(False)
            self._poller.register(listener, selectors.EVENT_READ, partial(self._invite, listener))
        self._balance.set(self._number, 0)
        while self._is_alive():
            self._turn(_CLOCK_EVERY_S)
        self._stop()

    def _stop(self) -> None:
        self._balance.leave(self._number)
        for listener in self._listeners:
            if listener not in self._left_to_others:
                self._poller.unregister(listener)
            listener.close()  # the next client goes to another replica, and waits in no backlog of ours
        self._left_to_others = []
        began = time.monotonic()
        for connection in self._connections:
            connection.until = min(connection.until, began + _IDLE_LINGER_S)
        while self._connections and time.monotonic() < began + LINGER_S:
            self._turn(0.1)
        for connection in tuple(self._connections):
            self._close(connection)
        for pool in (self._others, *self._routes.values()):
            if pool.threads is not None:
                pool.threads.shutdown(wait=False, cancel_futures=True)

    def _turn(self, max_s: float) -> None:
        left, self._left_to_others = self._left_to_others, []
        for key, _ in self._poller.select(_LEFT_TO_OTHERS_S if left else max_s):
            key.data()
        for listener in left:
            self._poller.register(listener, selectors.EVENT_READ, partial(self._invite, listener))
            self._accept(listener)  # if no other worker has accepted the client
        now = time.monotonic()
        if now < self._clock_at:
            return
        self._clock_at = now + _CLOCK_EVERY_S
        self._notify()
        if self._service.tls is not None:
            self._service.tls()  # loads a renewed certificate before the next client needs it
        for connection in [each for each in self._connections if each.until <= now and not each.busy]:
            self._close(connection)

    # New connections.

    def _invite(self, listener: socket.socket) -> None:
        if self._balance.another_has_fewer(len(self._connections)):
            self._poller.unregister(listener)
            self._left_to_others.append(listener)
        else:
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            raw, client = listener.accept()
        except OSError:
            return  # another worker has accepted it, it has left, or too many files are open
        try:
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = self._with_tls(raw)
            self._make_room()
            until = time.monotonic() + self._limits.first_request_s
            connection = HttpConnection(sock, client, self._limits.body_bytes, until)
        except OSError:
            raw.close()
            return
        self._connections.add(connection)
        self._balance.set(self._number, len(self._connections))
        self._poller.register(sock, selectors.EVENT_READ, partial(self._advance, connection))

    def _with_tls(self, raw: socket.socket) -> socket.socket:
        if self._service.tls is None:
            return raw
        context = self._service.tls()
        if context is None:
            raise OSError("there is no certificate yet")
        return context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)

    def _make_room(self) -> None:
        """Closes the connection that has the least time left if there are too many. Raises OSError if all of
        them are busy."""
        if len(self._connections) < self._limits.connections:
            return
        idle = [each for each in self._connections if not each.busy]
        if not idle:
            raise OSError("all connections are busy")
        self._close(min(idle, key=lambda each: each.until))

    def _close(self, connection: HttpConnection) -> None:
        if connection.closed:
            return
        connection.closed = True
        self._connections.remove(connection)
        self._unanswered_bytes -= len(connection.reader.buffer)
        if self._is_alive():
            self._balance.set(self._number, len(self._connections))
        self._wait_for(connection, 0)
        if not connection.busy:  # else the thread that has it closes it
            connection.sock.close()

    # What a connection goes through.

    def _advance(self, connection: HttpConnection, may_receive: bool = True) -> None:
        """Goes as far with a connection as possible without waiting."""
        if connection.closed:
            return
        try:
            # a client that sends ahead of its answer waits
            events = 0 if connection.busy else self._progress(connection, may_receive)
        except ssl.SSLWantWriteError:
            events = selectors.EVENT_WRITE
        except (ssl.SSLWantReadError, BlockingIOError):
            events = selectors.EVENT_WRITE if connection.outbox else selectors.EVENT_READ
        except (OSError, EOFError):
            self._close(connection)
            return
        if events != connection.events:
            self._wait_for(connection, events)

    def _progress(self, connection: HttpConnection, may_receive: bool) -> int:
        if not connection.is_ready:
            connection.sock.do_handshake()  # type: ignore[attr-defined] # it is an SSLSocket
            connection.is_ready = True
            connection.is_verified = bool(connection.sock.getpeercert())  # type: ignore[attr-defined]
        if connection.outbox or connection.ending or connection.reader.buffer:
            self._answer_all(connection)
        for _ in range(RECEIVES_A_TURN):
            if connection.busy or not may_receive:  # an empty receive costs more than a wake-up
                break
            received, may_receive = connection.receive()
            self._take(connection, received)
            self._answer_all(connection)
        return selectors.EVENT_READ

    def _wait_for(self, connection: HttpConnection, events: int) -> None:
        before, connection.events = connection.events, events
        if not events:
            if before:
                self._poller.unregister(connection.sock)
        elif before:
            self._poller.modify(connection.sock, events, partial(self._advance, connection))
        else:
            self._poller.register(connection.sock, events, partial(self._advance, connection))

    def _take(self, connection: HttpConnection, received: bytes) -> None:
        if connection.ending:
            return  # thrown away: a close with unread bytes would take the last answer with it
        if not connection.reader.buffer:
            connection.until = time.monotonic() + self._limits.request_s
        connection.reader.buffer += received
        self._unanswered_bytes += len(received)
        if self._unanswered_bytes > self._limits.unanswered_bytes:
            largest = max(self._connections, key=lambda each: len(each.reader.buffer))
            if largest is connection:
                raise EOFError
            self._close(largest)

    def _answer_all(self, connection: HttpConnection) -> None:
        """Answers every whole request, and sends each answer before the next request is read."""
        while True:
            if connection.outbox:
                connection.send()
            if connection.busy or connection.ending or not connection.reader.buffer:
                break
            if not self._answer_next(connection):
                break
        if connection.ending and not connection.sent_all:
            connection.sent_all = True
            connection.sock.shutdown(socket.SHUT_WR)

    def _answer_next(self, connection: HttpConnection) -> bool:
        """False if nothing is to be sent now."""
        reader = connection.reader
        before = len(reader.buffer)
        try:
            found = reader.next()
        except RejectedRequestError as error:
            peer, status = connection.client[0], error.status.value
            log("malformed-request", level="warning", peer=peer, status=status, error=error)
            self._compose(connection, self._service.refusal(error.status, str(error)), True)
            return True
        if found is None:
            if reader.must_continue:
                reader.must_continue = False
                connection.outbox += _CONTINUE
            return bool(connection.outbox)
        head, body = found
        if reader.must_continue:
            reader.must_continue = False
            connection.outbox += _CONTINUE
        self._unanswered_bytes -= before - len(reader.buffer)
        connection.busy = True
        reply = partial(self._reply, connection, head.closes)
        request = HttpRequest(head, body, connection.client, connection.server, reply, connection.is_verified)
        handler, threads = self._routes.get((head.method, head.path), self._others)
        return self._answer(connection, request, handler, threads)

    def _answer(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        handler: Handler,
        threads: ThreadPoolExecutor | None,
    ) -> bool:
        """True if the answer is there already."""
        if threads is None:
            answer = self._call(handler, request)
            if isinstance(answer, HttpAnswer):
                self._compose(connection, answer, request.head.closes)
                self._release(connection)
                return True
            return answer is not None and self._answer(connection, request, answer, self._app_threads)
        connection.busy_bytes = len(request.body)
        self._unanswered_bytes += connection.busy_bytes
        threads.submit(self._answer_in_thread, connection, request, handler)
        return False

    def _release(self, connection: HttpConnection) -> None:
        """The answer is composed; the next request may come."""
        connection.busy = False
        self._unanswered_bytes -= connection.busy_bytes
        connection.busy_bytes = 0
        if not connection.ending:
            limits = self._limits
            awaited_s = limits.request_s if connection.reader.buffer else limits.keep_alive_s
            connection.until = time.monotonic() + (awaited_s if self._is_alive() else _IDLE_LINGER_S)

    def _call(self, handler: Handler, request: HttpRequest) -> "HttpAnswer | Handler | None":
        try:
            return handler(request)
        except Exception as error:
            log_exception("internal-error", error, method=request.head.method, path=request.head.path)
            return self._service.refusal(
                HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the server's log has the details"
            )

    def _compose(self, connection: HttpConnection, answer: HttpAnswer, closes: bool) -> None:
        closes = closes or self._ends_connections()
        connection.compose(answer, closes)
        if closes:
            self._end(connection)

    def _ends_connections(self) -> bool:
        """Whether answers close their connections: at the end, and when few more fit in."""
        crowded = len(self._connections) > self._limits.connections * 9 // 10
        return crowded or not self._is_alive() or self._service.ends_connections()

    def _end(self, connection: HttpConnection) -> None:
        connection.ending = True
        self._unanswered_bytes -= len(connection.reader.buffer)
        connection.reader.clear()
        connection.until = time.monotonic() + _LAST_ANSWER_S

    # Answers of other threads.

    def _reply(self, connection: HttpConnection, closes: bool, answer: HttpAnswer | None) -> None:
        """In any thread: gives a busy connection back to the loop, which sends ``answer``; None if a thread
        has sent as much as the socket took. The loop is woken once for all replies that wait for it."""
        self._finished.append((connection, closes, answer))
        if not self._wake_is_sent:
            self._wake_is_sent = True
            with suppress(BlockingIOError):  # the pipe is full, so the loop wakes anyway
                os.write(self._pipe[1], b".")

    def _finish_answers(self) -> None:
        os.read(self._pipe[0], 4096)
        self._wake_is_sent = False
        while self._finished:
            connection, closes, answer = self._finished.popleft()
            self._release(connection)
            if connection.closed:
                connection.sock.close()
            elif connection.failed:
                self._close(connection)
            else:
                if answer is not None:
                    self._compose(connection, answer, closes)
                elif closes:
                    self._end(connection)
                self._advance(connection, may_receive=False)

    def _answer_in_thread(self, connection: HttpConnection, request: HttpRequest, handler: Handler) -> None:
        """In a thread of a pool, to which the connection belongs until it is given back."""
        closes = request.head.closes
        try:
            answer = self._call(handler, request)
            if answer is None:
                return  # the handler's reply gives it back
            if not isinstance(answer, HttpAnswer):
                self._answer_in_thread(connection, request, answer)
                return
            closes = self._send_from_thread(connection, answer, request)
        except BaseException as error:  # also SystemExit: the thread goes on
            connection.failed = True
            if not isinstance(error, OSError):  # else the client has left
                log_exception("internal-error", error, method=request.head.method, path=request.head.path)
        self._reply(connection, closes, None)

    def _send_from_thread(self, connection: HttpConnection, answer: HttpAnswer, request: HttpRequest) -> bool:
        """What the socket does not take at once is left to the loop. True if the connection ends with it."""
        closes = request.head.closes or self._ends_connections()
        if isinstance(answer.body, bytes):
            connection.compose(answer, closes)
        else:
            chunked = request.head.version >= (1, 1)
            closes = closes or not chunked
            connection.send_pieces(answer, answer.body, closes, chunked)
        with suppress(*WOULD_BLOCK):
            connection.send()
        return closes


def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="http")
