"""The socket of a server: the workers of a predecessor that was killed may hold its port for a moment."""

import contextlib
import socket
from threading import Timer

import pytest

from timekeeper.runtime.http import server
from timekeeper.runtime.http.server import CannotListenError, listening_socket


def test_a_port_that_is_given_up_soon_is_waited_for() -> None:
    before = listening_socket("127.0.0.1", 0)
    port = before.getsockname()[1]
    Timer(0.3, before.close).start()

    with contextlib.closing(listening_socket("127.0.0.1", port)) as after:
        assert after.getsockname()[1] == port


def test_a_port_that_stays_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 0.2)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]

        with pytest.raises(CannotListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already"):
            listening_socket("127.0.0.1", port)
