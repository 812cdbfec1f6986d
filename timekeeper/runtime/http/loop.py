"""The loop of all our servers, which never waits for a client.

The loop accepts connections, does their TLS handshakes, receives whole requests within bounds
(`framing`) and sends answers, each as far as the socket allows. A handler of the loop answers at once; a
handler that waits has a thread of a bounded pool, which gets a request only when it is whole. A client that
is silent or slow, or stops in the middle of a head or a body, holds no thread.
"""

import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from timekeeper.edge.log import log, log_exception
from timekeeper.runtime.http.acceptor import LEFT_TO_OTHERS_S, Acceptor, ConnectionBalance
from timekeeper.runtime.http.connection import WOULD_BLOCK, HttpConnection
from timekeeper.runtime.http.framing import RejectedRequestError
from timekeeper.runtime.http.queues import HandlerPools, ReplyQueue
from timekeeper.runtime.http.service import Handler, HttpAnswer, HttpRequest, HttpService

RECEIVES_A_TURN = 64  # of one connection; then the others have their turn
LINGER_S = 3.0  # on a graceful stop, for requests that are being sent or answered

_IDLE_LINGER_S = 2.0  # on a graceful stop, for requests that may be on their way on an idle connection
_LAST_ANSWER_S = 3.0  # for a client to read the last answer of a connection, and to stop sending
_CLOCK_EVERY_S = 0.5

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)  # a close throws away what is unsent


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
        self._is_alive = is_alive
        self._balance, self._number, self._notify = balance, number, notify
        self._poller = selectors.DefaultSelector()
        self._acceptor = Acceptor(listeners, self._poller, service.tls, self._has_fewer, self._connect)
        self._connections: set[HttpConnection] = set()
        self._unanswered_bytes = 0
        self._untaken_bytes = 0  # of answers, at most
        self._clock_at = 0.0  # when deadlines are looked at again
        self._replies: ReplyQueue[tuple[HttpConnection, bool, HttpAnswer | None]] = ReplyQueue(pipe)
        self._handlers = HandlerPools(service)

    def run(self) -> None:
        """Serves until `is_alive` is False, then answers what has begun, for LINGER_S at most."""
        self._poller.register(self._replies.fileno, selectors.EVENT_READ, self._woken)
        self._acceptor.open()
        self._balance.set(self._number, 0)
        while self._is_alive():
            self._turn(_CLOCK_EVERY_S)
        self._stop()

    def _stop(self) -> None:
        self._balance.leave(self._number)
        self._acceptor.close()
        began = time.monotonic()
        for connection in self._connections:
            connection.until = min(connection.until, began + _IDLE_LINGER_S)
        while self._connections and time.monotonic() < began + LINGER_S:
            self._turn(0.1)
        for connection in tuple(self._connections):
            self._close(connection)
        self._handlers.close()

    def _turn(self, max_s: float) -> None:
        left = self._acceptor.take_left()
        ready = self._poller.select(LEFT_TO_OTHERS_S if left else max_s)
        self._finish_answers()  # the next request of such a connection may be among what is ready
        for key, _ in ready:
            key.data()
        self._acceptor.accept_left(left)
        now = time.monotonic()
        if now < self._clock_at:
            return
        self._clock_at = now + _CLOCK_EVERY_S
        self._notify()
        if self._service.tls is not None:
            self._service.tls()  # loads a renewed certificate before the next client needs it
        for connection in [each for each in self._connections if each.until <= now and not each.busy]:
            if connection.untaken() and not connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                connection.until = now + _LAST_ANSWER_S  # the kernel ends it if the client takes nothing
            else:
                self._close(connection)

    # New connections.

    def _has_fewer(self) -> bool:
        """Whether another worker should accept the next client."""
        return self._balance.another_has_fewer(len(self._connections))

    def _connect(self, sock: socket.socket, client: Any) -> None:
        """Receive from this client. Raises OSError if all connections are busy."""
        self._close_some()
        until = time.monotonic() + self._limits.first_request_s
        connection = HttpConnection(sock, client, self._limits.body_bytes, until)
        self._connections.add(connection)
        self._balance.set(self._number, len(self._connections))
        self._poller.register(sock, selectors.EVENT_READ, partial(self._advance, connection))

    def _close_some(self) -> None:
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
        connection.reader.clear()
        if self._is_alive():
            self._balance.set(self._number, len(self._connections))
        self._wait_for(connection, 0)
        if connection.untaken():
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if not connection.busy:  # else the thread that has it closes it
            connection.sock.close()

    # What a connection goes through.

    def _advance(self, connection: HttpConnection, may_receive: bool = True) -> None:
        """Goes as far with a connection as possible without waiting."""
        if connection.closed:
            return
        if connection.busy:  # a client that sends ahead of its answer waits
            self._wait_for(connection, 0)
            self._finish_answers()  # a thread that gave it back just before does not wake the loop
            return
        try:
            events = self._progress(connection, may_receive)
        except ssl.SSLWantWriteError:
            events = selectors.EVENT_WRITE
        except (ssl.SSLWantReadError, BlockingIOError):
            events = selectors.EVENT_WRITE if connection.outbox else selectors.EVENT_READ
        except (OSError, EOFError) as error:
            if not isinstance(error, EOFError) or not connection.untaken():
                self._close(connection)
                return
            self._end(connection)  # it may read on
            events = selectors.EVENT_WRITE if connection.outbox else 0
        if events != connection.events:
            self._wait_for(connection, events)

    def _progress(self, connection: HttpConnection, may_receive: bool) -> int:
        if not connection.is_ready:
            connection.sock.do_handshake()  # type: ignore[attr-defined] # it is an SSLSocket
            connection.is_ready = True
            shown = connection.sock.getpeercert()  # type: ignore[attr-defined]
            connection.is_verified = self._service.is_known(shown)
        if self._answer_one(connection):
            return selectors.EVENT_WRITE
        for _ in range(RECEIVES_A_TURN):
            if connection.busy or not may_receive:  # an empty receive costs more than a wake-up
                break
            received, may_receive = connection.receive()
            self._take(connection, received)
            if self._answer_one(connection):
                return selectors.EVENT_WRITE
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
            self._close(largest)
            if largest is connection:
                raise ConnectionAbortedError

    def _answer_one(self, connection: HttpConnection) -> bool:
        """Sends the rest of an answer, or answers the next request. True if another request waits until that
        has left, which is when the socket can be written to again."""
        may_answer = connection.reader.buffer and not (connection.busy or connection.ending)
        answers = bool(connection.outbox or (may_answer and self._answer_next(connection)))
        if answers:
            connection.send()
        if connection.ending:
            connection.sock.shutdown(socket.SHUT_WR)
        return answers and bool(connection.reader.buffer)

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
        if reader.must_continue:
            reader.must_continue = False
            connection.outbox += _CONTINUE
        if found is None:
            return bool(connection.outbox)
        head, body = found
        self._unanswered_bytes -= before - len(reader.buffer)
        connection.busy = True
        reply = partial(self._reply, connection, head.closes)
        request = HttpRequest(head, body, connection.client, connection.server, reply, connection.is_verified)
        handler, threads = self._handlers.find(head.method, head.path)
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
                self._count_answer(connection)
                return True
            if answer is None:
                return False
            return self._answer(connection, request, answer, self._handlers.later_threads)
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

    def _count_answer(self, connection: HttpConnection) -> None:
        """Where clients have not taken answers of too many bytes, the half of them that was answered first is
        reset. A 503 would not do: then clients that never read an answer would keep all others out."""
        connection.answered_at = time.monotonic()
        self._untaken_bytes += len(connection.rest) + connection.untaken()
        if self._untaken_bytes <= self._limits.unanswered_bytes:
            return
        slow = [each for each in self._connections if each.untaken() and not each.busy]
        bodies = {id(each.rest.obj): len(each.rest) for each in slow}  # many may be sent the same one
        self._untaken_bytes = sum(bodies.values()) + sum(each.untaken() for each in slow)
        if self._untaken_bytes > self._limits.unanswered_bytes:
            slow.sort(key=lambda each: each.answered_at)
            for each in slow[: len(slow) // 2]:
                self._close(each)

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
        has sent as much as the socket took."""
        self._replies.put((connection, closes, answer))
        if answer is not None or closes or _has_work(connection):
            self._replies.wake()

    def _woken(self) -> None:
        self._replies.woken()
        self._finish_answers()

    def _finish_answers(self) -> None:
        for connection, closes, answer in self._replies.take():
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
                self._count_answer(connection)
                if connection.reader.buffer:  # the next request is read once this answer has left
                    self._wait_for(connection, selectors.EVENT_WRITE)
                else:
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


def _has_work(connection: HttpConnection) -> bool:
    """Whether the loop must do something for a connection that a thread gives back. If not, it need not wake
    before the client's next request."""
    must_end = connection.failed or connection.closed
    return must_end or not connection.events or bool(connection.outbox or connection.reader.buffer)
