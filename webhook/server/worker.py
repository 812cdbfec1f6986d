"""gunicorn's worker for the webhook: one thread, one loop, and nobody who is slow or silent is waited for.

A review is pure computation, so more threads only make it dearer; what must not happen is that a client which
says nothing, or little by little, holds a thread. So handshakes, requests and answers are taken and sent as
they come, and only a whole request is answered: a review by `ReviewEndpoint`, anything else by the WSGI
application. HTTP is parsed by gunicorn's own code. A request must tell its length, as the API server's do.
"""

import io
import os
import selectors
import socket
import ssl
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from gunicorn import util
from gunicorn.workers.base import Worker

from webhook.server.connection import Connection, measure
from webhook.server.head_cache import Heads, Response, of_answer
from webhook.server.seats import Seats

if TYPE_CHECKING:
    from webhook.server.review_endpoint import ReviewEndpoint

MOST_CONNECTIONS = 1_000
MOST_UNANSWERED_BYTES = 64 * 1024 * 1024  # of a worker's clients together, for its memory is bounded too

KEEP_ALIVE_S = 120.0  # longer than the 90 s for which an API server keeps an idle connection to use again
WHOLE_REQUEST_S = 15.0  # for the rest of a request that has begun; an API server gives up sooner
_LOOK_EVERY_S = 0.5
LINGER_S = 2.0  # for what may be on its way on a connection that ends
_YIELD_S = 0.005  # how long a new client is left to another worker

_TAKE_BYTES = 16 * 1024  # a TLS record has no more
TAKES_A_TURN = 64  # then the others have a turn, however fast this one sends


class ReviewWorker(Worker):  # type: ignore[misc]
    """Serves ``app.reviews``, and for all else the WSGI application that gunicorn has loaded, over the TLS
    that ``app.certificates()`` gives."""

    def run(self) -> None:
        """Serves until told to stop; then answers what is on its way, for LINGER_S at most."""
        self._poller = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._unanswered = 0  # bytes in all their inboxes
        self._heads = Heads(self.cfg)
        self._reviews: ReviewEndpoint = self.app.reviews
        self._left_to_others: list[socket.socket] = []  # listeners, for a moment
        self._seats: Seats = self.app.seats
        self._seats.hold(self.age, 0)
        self._look_at = 0.0  # when the next look at the clock is due
        self._poller.register(self.PIPE[0], selectors.EVENT_READ, partial(self._woken, self.PIPE[0]))
        for listener in self.sockets:
            listener.setblocking(False)
            self._poller.register(listener, selectors.EVENT_READ, partial(self._invite, listener))
        while self.alive and self.ppid == os.getppid():
            self._turn(_LOOK_EVERY_S)
        self._stop()

    def _stop(self) -> None:
        self._seats.leave(self.age)
        for listener in self.sockets:
            if listener not in self._left_to_others:
                self._poller.unregister(listener)
            listener.close()  # who comes now goes to another replica, and waits in no backlog of ours
        self._left_to_others = []
        last = time.monotonic() + LINGER_S
        while self._connections and time.monotonic() < last:
            self._turn(0.1)
        for connection in tuple(self._connections):
            self._close(connection)
        self._poller.close()

    def _turn(self, most_s: float) -> None:
        left, self._left_to_others = self._left_to_others, []
        for key, _ in self._poller.select(_YIELD_S if left else most_s):
            key.data()
        for listener in left:
            self._poller.register(listener, selectors.EVENT_READ, partial(self._invite, listener))
            self._accept(listener)  # whoever is still there
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        self.notify()
        self.app.certificates()  # a renewed one is there before the next client is
        for connection in [each for each in self._connections if each.until <= now]:
            self._close(connection)

    def _woken(self, pipe: int) -> None:
        os.read(pipe, 4096)

    def _invite(self, listener: socket.socket) -> None:
        if self._seats.another_has_fewer(len(self._connections)):
            self._poller.unregister(listener)
            self._left_to_others.append(listener)
        else:
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            raw, client = listener.accept()
        except OSError:
            return  # a sibling was faster, or the client has left
        context = self.app.certificates()
        if context is None:
            raw.close()
            return
        raw.setblocking(False)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        except OSError:
            raw.close()  # it has left
            return
        if len(self._connections) >= MOST_CONNECTIONS:
            self._close(min(self._connections, key=lambda each: each.until))
        connection = Connection(sock, client, listener.getsockname())
        self._connections.add(connection)
        self._seats.hold(self.age, len(self._connections))
        self._poller.register(sock, selectors.EVENT_READ, partial(self._go_on, connection))

    def _close(self, connection: Connection) -> None:
        self._connections.remove(connection)
        self._forget(connection, len(connection.inbox))
        if self.alive:
            self._seats.hold(self.age, len(self._connections))
        self._poller.unregister(connection.sock)
        connection.sock.close()

    def _go_on(self, connection: Connection) -> None:
        """Goes as far with a connection as can be gone without waiting."""
        if connection not in self._connections:
            return  # closed earlier in this turn
        wants = selectors.EVENT_READ
        try:
            self._greet(connection)
            self._answer_all(connection)
            for _ in range(TAKES_A_TURN):
                taken = self._take(connection)
                self._answer_all(connection)  # also after the last: what was taken wakes the poller no more
                if taken < _TAKE_BYTES and not connection.sock.pending():
                    break  # a head comes before its body, and to ask in vain is dearer than to be woken
        except (ssl.SSLWantReadError, BlockingIOError):
            wants = selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            wants = selectors.EVENT_WRITE
        except (OSError, EOFError):
            self._close(connection)
            return
        if wants != connection.wants:
            connection.wants = wants
            self._poller.modify(connection.sock, wants, partial(self._go_on, connection))

    def _greet(self, connection: Connection) -> None:
        if not connection.greeted:
            connection.sock.do_handshake()
            connection.greeted = True

    def _take(self, connection: Connection) -> int:
        """Takes one record at most; how many bytes it had."""
        taken = connection.sock.recv(_TAKE_BYTES)
        if not taken:
            raise EOFError
        if connection.ending:
            return len(taken)
        if not connection.inbox:
            connection.allow(WHOLE_REQUEST_S)
        connection.inbox += taken
        self._unanswered += len(taken)
        if self._unanswered > MOST_UNANSWERED_BYTES:
            self._make_room(connection)
        return len(taken)

    def _make_room(self, asking: Connection) -> None:
        """Ends the connection that holds the most; raises EOFError where it is the one that asks."""
        greediest = max(self._connections, key=lambda each: len(each.inbox))
        if greediest is asking:
            raise EOFError
        self._close(greediest)

    def _forget(self, connection: Connection, taken: int) -> None:
        del connection.inbox[:taken]
        self._unanswered -= taken

    def _answer_all(self, connection: Connection) -> None:
        """Answers every whole request in the inbox; each answer is sent before the next request is read."""
        self._send(connection)
        while not connection.ending and self._answer_one(connection):
            self._send(connection)
        if connection.ending and not connection.said_all:
            connection.said_all = True
            connection.sock.shutdown(socket.SHUT_WR)

    def _send(self, connection: Connection) -> None:
        while connection.outbox:
            sent = connection.sock.send(connection.outbox)
            del connection.outbox[:sent]

    def _answer_one(self, connection: Connection) -> bool:
        if not connection.inbox:
            return False
        if not connection.awaited:
            refusal = measure(connection)
            if refusal is not None:
                util.write_error(connection, *refusal)
                self._end(connection)
                return True
        if not connection.awaited or len(connection.inbox) < connection.awaited:
            return False
        body = bytes(memoryview(connection.inbox)[connection.head_bytes : connection.awaited])
        self._forget(connection, connection.awaited)
        connection.awaited = 0
        connection.allow(WHOLE_REQUEST_S if connection.inbox else KEEP_ALIVE_S)
        if not self._serve(connection, body):
            self._end(connection)
        return True

    def _end(self, connection: Connection) -> None:
        """Nothing more is answered. What still comes is thrown away for a moment: a connection that is closed
        on unread bytes takes its last answer with it."""
        connection.ending = True
        connection.allow(LINGER_S)

    def _serve(self, connection: Connection, body: bytes) -> bool:
        """Answers one whole request; False where the connection ends with it."""
        request = None
        try:
            request, environ, ends = self._heads.of(connection)
            said = self._reviews.said(environ["REQUEST_METHOD"], environ["PATH_INFO"], body)
            if said is None:
                return self._serve_other(connection, request, environ, body)
            ends = ends or not self.alive
            connection.outbox += of_answer(said.status, said.kind, len(said.body), ends)
            connection.outbox += said.body
            return not ends
        except StopIteration:
            return False
        except Exception as error:
            self.handle_error(request, connection, connection.client, error)
            return False

    def _serve_other(
        self, connection: Connection, request: Any, environ: Mapping[str, Any], body: bytes
    ) -> bool:
        """Has the WSGI application answer what is no review."""
        response = Response(request, connection, self.cfg)
        if not self.alive:
            response.force_close()
        told = {
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_ADDR": connection.client[0],
            "REMOTE_PORT": str(connection.client[1]),
            "wsgi.input": io.BytesIO(body),
        }
        self._respond(response, {**environ, **told})
        return not response.should_close()

    def _respond(self, response: Any, environ: dict[str, Any]) -> None:
        body = self.wsgi(environ, response.start_response)
        try:
            for part in body:
                response.write(part)
            response.close()
        finally:
            if hasattr(body, "close"):
                body.close()
