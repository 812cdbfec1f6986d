"""gunicorn's threaded worker, whose loop waits for nobody: handshakes and requests are taken as they come,
heartbeats are answered by the loop itself, and only whole requests take a thread.

A client that says nothing, or little by little, holds no thread; a heartbeat costs neither a thread nor
Flask. HTTP is parsed by gunicorn's own code.
"""

import selectors
import socket
import ssl
import time
from collections import deque
from concurrent.futures import Future
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

from gunicorn import util
from gunicorn.workers.gthread import ThreadWorker

from timekeeper import metrics
from timekeeper.api.problem import CONTENT_TYPE, Problem
from timekeeper.api.resources.heartbeats import PATH, Heartbeats
from timekeeper.runtime.log import log_exception
from timekeeper.serving.connection import WHOLE_REQUEST_S, Connection
from timekeeper.serving.seats import Seats

_TAKE_BYTES = 64 * 1024
_TAKES_A_TURN = 16  # then the others have a turn, however fast this one sends
_MOST_AHEAD_BYTES = 64 * 1024  # of what is sent while an answer is awaited
_LINGER_S = 2.0  # for what may be on its way on a connection that ends
_LOOK_EACH_S = 0.5
_LEAVES_S = 0.01  # how long a new client is left to a worker with fewer, which may hang


class LoopWorker(ThreadWorker):  # type: ignore[misc]
    """``app.seats`` tells how many connections each worker has; the application's extension ``heartbeats``
    answers heartbeats."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._connections: set[Connection] = set()
        self._told: deque[tuple[Connection, bytes | Problem]] = deque()
        self._woken = False
        self._look_at = 0.0
        self._left_until = 0.0  # clients that wait are left to another worker; 0: they are not
        self._seats: Seats = self.app.seats

    def init_process(self) -> None:
        """In the worker, after the fork; runs until it ends."""
        self._seats.hold(self.age, 0)
        super().init_process()

    def load_wsgi(self) -> None:
        """In the worker, before it serves."""
        super().load_wsgi()
        self._door: Heartbeats = self.wsgi.extensions["heartbeats"]
        self._seconds = metrics.SECONDS.labels(PATH)

    # gunicorn's loop calls these.

    def accept(self, listener: socket.socket) -> None:
        """Take a client in, or leave it to a worker with fewer for a moment."""
        if self._seats.another_has_fewer(self.nr_conns):
            self._left_until = time.monotonic() + _LEAVES_S
            self.set_accept_enabled(False)
        else:
            self._take_in(listener)

    def set_accept_enabled(self, enabled: bool) -> None:
        """As gunicorn says each turn, but no client is looked at while those that wait are left to
        another."""
        super().set_accept_enabled(enabled and not self._left_until)

    def _take_in(self, listener: socket.socket) -> None:
        try:
            raw, client = listener.accept()
        except OSError:
            return  # another worker was faster, the client has left, or we have too many files open
        try:
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context: ssl.SSLContext = self.cfg.ssl_context(self.cfg, None)
            sock = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            self._make_room()
        except OSError:
            raw.close()
            return
        conn = Connection(self.cfg, sock, client, listener.getsockname())
        self._connections.add(conn)
        self._hold(1)
        self.poller.register(sock, selectors.EVENT_READ, partial(self._go_on, conn))

    def finish_request(self, conn: Connection, done: "Future[Any]") -> None:
        """Take a connection back from a thread that has answered."""
        keeps = not done.cancelled() and done.exception() is None and bool(done.result())
        conn.threaded = False
        if conn.sock.fileno() < 0:
            self._close(conn)
            return
        conn.sock.setblocking(False)
        conn.inbox += conn.parser.unreader.take_buffered()
        if keeps:
            self._rest(conn)
        else:
            self._end(conn)
        self._go_on(conn)

    def murder_keepalived(self, force: bool = False) -> None:
        """Close what took too long, or everything."""
        now = time.monotonic()
        if now < self._look_at and not force:
            return
        self._look_at = now + _LOOK_EACH_S
        for conn in [each for each in self._connections if force or each.until <= now]:
            if not (conn.threaded or conn.busy) or (force and not conn.threaded):
                self._close(conn)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """One turn."""
        if not self.alive:
            super().wait_for_and_dispatch_events(min(timeout, 0.1))
            return
        if self._left_until:
            timeout = max(0.0, min(timeout, self._left_until - time.monotonic()))
        super().wait_for_and_dispatch_events(timeout)
        if self.alive and 0 < self._left_until <= time.monotonic():
            self._left_until = 0.0
            for listener in self.sockets:
                self._take_in(listener)  # whoever is still there

    def _cap_keepalive(self, deadline: float) -> None:
        self._seats.leave(self.age)
        for conn in self._connections:
            conn.until = min(conn.until, deadline)

    # Connections.

    def _go_on(self, conn: Connection, _sock: object = None) -> None:
        """Go as far with a connection as can be gone without waiting."""
        if conn.closed or conn.threaded:
            return
        try:
            wants = self._progress(conn)
        except (OSError, EOFError):
            self._close(conn)
            return
        if not conn.threaded:
            self._want(conn, wants)

    def _progress(self, conn: Connection) -> int:
        """What the connection waits for then, as the poller's events; 0: for its answer."""
        try:
            self._greet(conn)
            self._send(conn)
            self._serve(conn)
            for _ in range(_TAKES_A_TURN):
                if conn.threaded or (conn.busy and len(conn.inbox) > _MOST_AHEAD_BYTES):
                    return 0
                self._take(conn)
                self._serve(conn)
        except (ssl.SSLWantReadError, BlockingIOError):
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        # what TLS has decrypted already wakes no poller
        self.method_queue.defer(self._go_on, conn)
        return selectors.EVENT_READ

    def _greet(self, conn: Connection) -> None:
        if not conn.greeted:
            conn.sock.do_handshake()
            conn.greeted = True

    def _take(self, conn: Connection) -> None:
        taken = conn.sock.recv(_TAKE_BYTES)
        if not taken:
            raise EOFError
        if conn.ending:
            return
        if not conn.inbox and not conn.busy:
            conn.allow(WHOLE_REQUEST_S)
        conn.inbox += taken

    def _send(self, conn: Connection) -> None:
        while conn.outbox:
            sent = conn.sock.send(conn.outbox)
            del conn.outbox[:sent]
        if conn.ending and not conn.said_all:
            conn.said_all = True
            conn.sock.shutdown(socket.SHUT_WR)

    def _serve(self, conn: Connection) -> None:
        """Answer the requests that are whole, each after the one before."""
        while conn.inbox and not (conn.busy or conn.ending or conn.threaded):
            head = conn.whole()
            if head is None:
                return
            if head.authorization is None:
                self._to_thread(conn)
            else:
                self._beat(conn, head.authorization, conn.take(head), head.closes)
                self._send(conn)

    def _to_thread(self, conn: Connection) -> None:
        conn.threaded, conn.head = True, None
        self._want(conn, 0)
        conn.parser.unreader.unread(bytes(conn.inbox))
        conn.inbox.clear()
        self.enqueue_req(conn)

    def _rest(self, conn: Connection) -> None:
        """An answer is given; the next request may come."""
        conn.allow(WHOLE_REQUEST_S if conn.inbox else self.cfg.keepalive)

    def _end(self, conn: Connection) -> None:
        """Nothing more is answered. What still comes is thrown away for a moment: a connection that is closed
        on unread bytes takes its last answer with it."""
        conn.ending = True
        conn.inbox.clear()
        conn.allow(_LINGER_S)

    def _close(self, conn: Connection) -> None:
        if conn.closed:
            return
        conn.closed = True
        self._connections.remove(conn)
        self._want(conn, 0)
        conn.sock.close()
        self._hold(-1)

    def _want(self, conn: Connection, wants: int) -> None:
        before, conn.wants = conn.wants, wants
        if before == wants:
            return
        if not wants:
            self.poller.unregister(conn.sock)
        elif before:
            self.poller.modify(conn.sock, wants, partial(self._go_on, conn))
        else:
            self.poller.register(conn.sock, wants, partial(self._go_on, conn))

    def _hold(self, more: int) -> None:
        self.nr_conns += more
        if self.alive:
            self._seats.hold(self.age, self.nr_conns)

    def _make_room(self) -> None:
        """Close the connection that has the least time left, where there are too many; raises OSError where
        all are busy."""
        if self.nr_conns < self.worker_connections - 1:
            return
        idle = [each for each in self._connections if not (each.busy or each.threaded)]
        if not idle:
            raise OSError("all connections are busy")
        self._close(min(idle, key=lambda each: each.until))

    # Heartbeats.

    def _beat(self, conn: Connection, authorization: str, body: bytes, closes: bool) -> None:
        """Have it answered; what takes a question to the API server takes a thread."""
        conn.busy, conn.closes, conn.began = True, closes, time.monotonic()
        received_ms = self._door.clock()
        try:
            pod = self._door.known(authorization)
            if pod is None:
                self.tpool.submit(self._ask, conn, authorization, body, received_ms)
            else:
                self._door.submit(pod, body, received_ms, partial(self._tell, conn))
        except Problem as problem:
            self._answer(conn, problem)

    def _ask(self, conn: Connection, authorization: str, body: bytes, received_ms: int) -> None:
        """In a thread."""
        try:
            pod = self._door.pod(authorization)
            self._door.submit(pod, body, received_ms, partial(self._tell, conn))
        except Problem as problem:
            self._tell(conn, problem)
        except Exception as error:
            log_exception("internal-error", error, route=PATH)
            self._tell(conn, Problem(500, "something went wrong here; it stands in the log"))

    def _tell(self, conn: Connection, answer: bytes | Problem) -> None:
        """In any thread: the loop is woken once for all that wait for it."""
        self._told.append((conn, answer))
        if not self._woken:
            self._woken = True
            self.method_queue.defer(self._answer_all)

    def _answer_all(self) -> None:
        self._woken = False
        while self._told:
            conn, answer = self._told.popleft()
            if not conn.closed:
                self._answer(conn, answer)
                self._go_on(conn)

    def _answer(self, conn: Connection, answer: bytes | Problem) -> None:
        conn.busy = False
        is_full = self.nr_conns > self.worker_connections * 9 // 10
        closes = conn.closes or is_full or not self.alive
        conn.outbox += _response(answer, closes)
        status = answer.status if isinstance(answer, Problem) else HTTPStatus.OK
        metrics.REQUESTS.labels(PATH, str(int(status))).inc()
        self._seconds.observe(time.monotonic() - conn.began)
        if closes:
            self._end(conn)
        else:
            self._rest(conn)


def _response(answer: bytes | Problem, closes: bool) -> bytes:
    if isinstance(answer, Problem):
        status, kind, body, more = HTTPStatus(answer.status), CONTENT_TYPE, answer.body(), answer.headers
    else:
        status, kind, body, more = HTTPStatus.OK, "application/json", answer, {}
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nDate: {_date(int(time.time()))}\r\n"
        f"Connection: {'close' if closes else 'keep-alive'}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n"
    )
    named = "".join(f"{name}: {value}\r\n" for name, value in more.items())
    return f"{lines}{named}\r\n".encode("latin-1") + body


@lru_cache(maxsize=1)
def _date(_second: int) -> str:
    return str(util.http_date())
