"""Accepts clients on the listening sockets of one worker, or leaves them to a worker with fewer connections
for a moment."""

import mmap
import selectors
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

_MAX_WORKERS = 256
LEFT_TO_OTHERS_S = 0.005  # how long a client waits for a worker that has fewer connections but may hang
SEND_BUFFER_BYTES = 128 * 1024  # of a connection; the kernel takes as much again for itself
_TAKES_WITHIN_MS = 15_000  # a client that takes nothing for so long loses its connection, also a closed one


class Acceptor:
    """``another_should``: whether a client is left to another worker first. ``connect`` is called with each
    accepted client's socket, before the TLS handshake, and its address; it raises OSError if it does not take
    the client. ``tls``: the newest context; None: plain HTTP."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        poller: selectors.BaseSelector,
        tls: Callable[[], ssl.SSLContext | None] | None,
        another_should: Callable[[], bool],
        connect: Callable[[socket.socket, Any], None],
    ) -> None:
        self._listeners, self._poller = listeners, poller
        self._tls, self._another_should, self._connect = tls, another_should, connect
        self._left_to_others: list[socket.socket] = []  # listeners, for a moment

    def open(self) -> None:
        """Wait for clients."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._wait_for(listener)

    def close(self) -> None:
        """Accept no more: the next client goes to another replica, and waits in no backlog of ours."""
        for listener in self._listeners:
            if listener not in self._left_to_others:
                self._poller.unregister(listener)
            listener.close()
        self._left_to_others = []

    def take_left(self) -> list[socket.socket]:
        """The listeners whose client was left to another worker; each is given to `accept_left` after at most
        LEFT_TO_OTHERS_S."""
        left, self._left_to_others = self._left_to_others, []
        return left

    def accept_left(self, listeners: Sequence[socket.socket]) -> None:
        """Accept these clients if no other worker has."""
        for listener in listeners:
            self._wait_for(listener)
            self._accept(listener)

    def _wait_for(self, listener: socket.socket) -> None:
        self._poller.register(listener, selectors.EVENT_READ, partial(self._invite, listener))

    def _invite(self, listener: socket.socket) -> None:
        if self._another_should():
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
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1)  # writable once all has left
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TAKES_WITHIN_MS)
            self._connect(self._with_tls(raw), client)
        except OSError:
            raw.close()

    def _with_tls(self, raw: socket.socket) -> socket.socket:
        if self._tls is None:
            return raw
        context = self._tls()
        if context is None:
            raise OSError("there is no certificate yet")
        return context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)


class ConnectionBalance:
    """How many connections each worker holds, in memory that the workers share if it is made before the fork.

    A connection stays with the worker that accepted it, and the kernel would give all of them to the worker
    that happens to be awake: of two workers one would do nothing.
    """

    def __init__(self, tolerance: int = 0) -> None:
        """``tolerance``: a difference that is not worth the moment which a new client then waits."""
        self._tolerance = tolerance
        self._connections = memoryview(mmap.mmap(-1, 4 * _MAX_WORKERS)).cast("I")  # 0: no worker, 1: none

    def set(self, worker: int, connections: int) -> None:
        """A worker, by its number, now holds that many."""
        self._connections[worker % _MAX_WORKERS] = connections + 1

    def leave(self, worker: int) -> None:
        """The worker accepts no more connections."""
        self._connections[worker % _MAX_WORKERS] = 0

    def another_has_fewer(self, connections: int) -> bool:
        """True if a worker with that many should leave the next client to another one."""
        return any(0 < each <= connections - self._tolerance for each in self._connections)
