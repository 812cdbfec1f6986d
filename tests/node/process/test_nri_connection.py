"""The plugin's connection, as a runtime sees it that speaks the wire's bytes by itself."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from sidecar.node.nri import plugin
from sidecar.node.nri.connection import Broken, Failed, NriConnection
from sidecar.node.nri.placement import NodeDevices
from sidecar.node.nri.plugin import Plugin

PLUGIN, RUNTIME = 1, 2  # channels, by who is called
CALL, ANSWER = 1, 2
EMPTY = NodeDevices((), (), (), "", frozenset(), "")


def field(number: int, value: bytes | int) -> bytes:
    """One field of protobuf: bytes, or a small number."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


class Runtime:
    """The runtime's end of one connection."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(LONGEST_S)

    def accept(self) -> None:
        """The plugin's next connection."""
        self.end, _ = self._listener.accept()
        self.end.settimeout(LONGEST_S)

    def close(self) -> None:
        """No more of it."""
        self._listener.close()

    def say(self, channel: int, kind: int, body: bytes, stream: int = 3, pieces: int = 1) -> None:
        """One message, in so many frames."""
        whole = struct.pack(">IIBB", len(body), stream, kind, 0) + body
        step = -(-len(whole) // pieces)
        for at in range(0, len(whole), step):
            part = whole[at : at + step]
            self.end.sendall(struct.pack(">II", channel, len(part)) + part)

    def call(self, method: bytes, payload: bytes = b"", pieces: int = 1) -> tuple[int, int, int, bytes]:
        """What the plugin answers."""
        self.say(PLUGIN, CALL, field(2, method) + field(3, payload), pieces=pieces)
        return self.hear()

    def hear(self) -> tuple[int, int, int, bytes]:
        """Channel, stream, type and body of the next message."""
        channel, length = struct.unpack(">II", self._read(8))
        whole = self._read(length)
        size, stream, kind, _ = struct.unpack(">IIBB", whole[:10])
        assert size == len(whole) - 10
        return channel, stream, kind, whole[10:]

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            got = self.end.recv(count - len(found))
            assert got
            found += got
        return found


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    """One that listens at ``nri.sock``."""
    made = Runtime(tmp_path / "nri.sock")
    yield made
    made.close()


@pytest.fixture
def ended(runtime: Runtime, tmp_path: Path) -> Callable[[], str]:
    """Serves three methods in a thread; returns why that ended."""
    reasons: list[str] = []

    def refuse(_: bytes) -> bytes:
        raise Failed("no such card")

    def serve() -> None:
        connection = NriConnection(str(tmp_path / "nri.sock"))
        try:
            connection.serve("bursar", "50", {"Echo": lambda raw: raw, "Refuse": refuse})
        except Broken as error:
            reasons.append(str(error))
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    runtime.accept()

    def reason() -> str:
        thread.join(LONGEST_S)
        assert not thread.is_alive()
        return reasons[0]

    return reason


def test_it_registers_and_answers_each_call_on_its_stream(runtime: Runtime, ended: Callable[[], str]) -> None:
    channel, stream, kind, body = runtime.hear()
    register = field(1, b"bursar") + field(2, b"50")
    service = field(1, b"nri.pkg.api.v1alpha1.Runtime") + field(2, b"RegisterPlugin")
    assert (channel, stream, kind, body) == (RUNTIME, 1, CALL, service + field(3, register))
    runtime.say(RUNTIME, ANSWER, b"", stream=1)

    assert runtime.call(b"Echo", b"whole") == (PLUGIN, 3, ANSWER, field(2, b"whole"))
    assert runtime.call(b"Echo", b"in pieces", pieces=5) == (PLUGIN, 3, ANSWER, field(2, b"in pieces"))
    assert runtime.call(b"Refuse")[3] == field(1, field(1, 2) + field(2, b"no such card"))
    assert runtime.call(b"Other")[3] == field(1, field(1, 12) + field(2, b"no method Other"))

    runtime.end.close()
    assert ended() == "the runtime closed the connection"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">II", PLUGIN, 1 << 23), "a frame is too long"),
        (struct.pack(">IIIIBB", PLUGIN, 10, 1 << 23, 3, CALL, 0), "a message is too long"),
        (struct.pack(">IIIIBB", PLUGIN, 11, 1, 3, CALL, 0) + b"\xff", "a message cannot be read"),
    ],
)
def test_what_is_no_message_ends_the_connection(
    runtime: Runtime, ended: Callable[[], str], sent: bytes, reason: str
) -> None:
    runtime.hear()
    runtime.end.sendall(struct.pack(">II", 9, 2) + b"xx")  # of a channel that nobody reads
    runtime.end.sendall(sent)

    assert ended() == reason
    runtime.end.close()


def test_a_runtime_that_refuses_the_plugin_is_named(runtime: Runtime, ended: Callable[[], str]) -> None:
    runtime.hear()
    runtime.say(RUNTIME, ANSWER, field(1, field(1, 7) + field(2, b"plugins are off")), stream=1)

    assert ended() == "the runtime refuses the plugin: plugins are off"
    runtime.end.close()


def test_without_a_runtime_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="No such file"):
        NriConnection(str(tmp_path / "nri.sock"))


class Stopped(BaseException):
    """Ends the thread of a test."""


def test_it_connects_again_when_the_connection_breaks_and_waits_longer_where_none_came(
    runtime: Runtime, tmp_path: Path
) -> None:
    its = Plugin(lambda *_: None, frozenset())
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        its.devices = EMPTY  # the cards are read meanwhile
        if len(pauses) == 5:
            raise Stopped
        if len(pauses) == 3:
            runtime.close()

    def follow() -> None:
        with pytest.raises(Stopped):
            plugin.follow(its, str(tmp_path / "nri.sock"), pause)

    thread = threading.Thread(target=follow)
    thread.start()
    for _ in range(2):
        runtime.accept()
        runtime.hear()
        assert runtime.call(b"Configure", field(2, b"containerd") + field(5, 100))[3]
        assert runtime.call(b"Synchronize")[2] == ANSWER
        assert its.connected
        runtime.end.close()
    thread.join(LONGEST_S)

    assert not thread.is_alive()
    assert not its.connected
    assert pauses == [0.2, 0.2, 0.2, 0.4, 0.8]
