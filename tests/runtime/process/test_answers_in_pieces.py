"""An answer that is sent while it is made: how long its client may keep it waiting."""

import socket
from collections.abc import Iterator
from contextvars import copy_context
from http import HTTPStatus
from itertools import repeat
from threading import Thread

import pytest

from timekeeper.runtime.http.connection import PATIENCE_S, HttpConnection
from timekeeper.runtime.http.service import HttpAnswer

PIECE = b"x" * 1024 * 1024


class Taking:
    """A client that takes all that it is sent; each time the clock is turned by ``turn_s``."""

    def __init__(self, turn_s: float = 0.0) -> None:
        self.now_s, self._turn_s = 0.0, turn_s
        self.taken = 0
        ours, self._theirs = socket.socketpair()
        ours.setblocking(False)
        self.connection = HttpConnection(ours, ("", 0), 1024, 0.0, lambda: self.now_s)
        self._thread = Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        while received := self._theirs.recv(64 * 1024):
            self.taken += len(received)
            self.now_s += self._turn_s

    def send(self, pieces: Iterator[bytes]) -> None:
        try:
            self.connection.send_pieces(HttpAnswer(HTTPStatus.OK, "text/csv", pieces), pieces, False, True)
            self.connection.sock.setblocking(True)
            self.connection.send()
        finally:
            self.connection.sock.close()
            self._thread.join()
            self._theirs.close()


def test_an_answer_that_takes_long_to_be_made_is_sent_whole() -> None:
    client = Taking()

    def made() -> Iterator[bytes]:
        for _ in range(3):
            client.now_s += 700.0
            yield PIECE

    client.send(made())

    assert client.taken > 3 * len(PIECE)


def test_a_client_that_takes_a_little_now_and_then_gets_no_endless_answer() -> None:
    client = Taking(turn_s=0.25)

    with pytest.raises(TimeoutError, match="too slowly"):
        client.send(repeat(PIECE))


def test_a_client_that_others_wait_for_has_less_time_from_then_on() -> None:
    client = Taking(turn_s=0.25)

    def made() -> Iterator[bytes]:
        PATIENCE_S.set(lambda: 10.0 if client.now_s > 100.0 else 600.0)
        yield from repeat(PIECE)

    with pytest.raises(TimeoutError, match="too slowly"):
        copy_context().run(client.send, made())

    assert 100.0 < client.now_s < 110.0
