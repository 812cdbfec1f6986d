"""The kubelet's answer on who has which device, from a real gRPC server and from raw bytes."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.kubelet import grpc, hpack, podresources
from sidecar.node.state import plugin_devices
from sidecar.node.state.plugin_devices import PluginDevices

GPU = "nvidia.com/gpu"
# RFC 7541, C.4.1 to C.4.3 and C.6.1: texts and their Huffman codes
HUFFMAN = {
    "www.example.com": "f1e3c2e5f23a6ba0ab90f4ff",
    "no-cache": "a8eb10649cbf",
    "custom-key": "25a849e95ba97d7f",
    "custom-value": "25a849e95bb8e8b4bf",
    "302": "6402",
    "private": "aec3771a4b",
    "Mon, 21 Oct 2013 20:13:21 GMT": "d07abe941054d444a8200595040b8166e082a62d1bff",
    "https://www.example.com": "9d29ad171863c78f0b97c8e9ae82ae43d3",
}


def test_a_socket_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(grpc.CallFailed, match="No such file or directory"):
        podresources.listed(str(tmp_path / "kubelet.sock"))


ODD_ANSWERS = {
    "closes at once": (b"", "closed before the answer was whole"),
    "speaks HTTP/1.1": (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "does not speak HTTP/2"),
    "a frame beyond the size": ((1 << 20).to_bytes(3) + bytes(6), "does not speak HTTP/2"),
    "a reset": (b"\0\0\4\3\0\0\0\0\1" + b"\0\0\0\7", "reset with HTTP/2 error 7"),
    "going away": (b"\0\0\x08\7\0\0\0\0\0" + bytes(7) + b"\2", "closes the connection, with HTTP/2 error 2"),
    "pushes": (b"\0\0\4\5\4\0\0\0\1" + bytes(4), "pushes"),
    "no status": (b"\0\0\0\0\1\0\0\0\1", "no gRPC service answers there"),
    "headers that are cut off": (b"\0\0\1\1\5\0\0\0\1" + b"\x7f", "cut off"),
    "an index of the declined table": (b"\0\0\1\1\5\0\0\0\1" + b"\xbe", "a table that was declined"),
    "all padding": (b"\0\0\1\0\x09\0\0\0\1" + b"\x09", "all padding"),
    "another status of HTTP": (b"\0\0\1\1\5\0\0\0\1" + b"\x8d", "HTTP 404"),
    "endless headers": ((b"\0\x40\0\x09\0\0\0\0\1" + bytes(1 << 14)) * 2, "headers are too long"),
}


@pytest.mark.parametrize(("sent", "said"), ODD_ANSWERS.values(), ids=ODD_ANSWERS)
def test_what_is_no_grpc_is_told_and_never_waited_for(tmp_path: Path, sent: bytes, said: str) -> None:
    with (
        _Peer(tmp_path / "s", lambda peer: peer.sendall(sent)) as path,
        pytest.raises(grpc.CallFailed, match=said),
    ):
        grpc.call(path, "/a/b", timeout_s=20)


def test_a_peer_that_sends_a_byte_now_and_then_gets_no_more_time(tmp_path: Path) -> None:
    ended = threading.Event()

    def drip(peer: socket.socket) -> None:
        while not ended.wait(0.05):
            peer.sendall(b"\0")

    with _Peer(tmp_path / "s", drip) as path:
        with pytest.raises(grpc.CallFailed, match=r"no answer within 0\.3 s"):
            grpc.call(path, "/a/b", timeout_s=0.3)
        ended.set()


def test_pings_settings_padding_and_unknown_frames_do_not_disturb_an_answer() -> None:
    message = b"\0\0\0\0\2hi"
    frames = (
        _frame(4, 0, 0, b"\0\3\0\0\0\x64"),
        _frame(4, 1, 0, b""),
        _frame(6, 0, 0, b"12345678"),
        _frame(8, 0, 0, b"\0\0\1\0"),
        _frame(99, 0, 7, b"?"),
        _frame(1, 0x20, 1, bytes(5) + b"\x88"),
        _frame(9, 4, 1, b"\x5f\x10application/grpc"),
        _frame(0, 8, 1, b"\3" + message[:4] + bytes(3)),
        _frame(0, 0, 1, message[4:]),
        _frame(1, 5, 1, b"\x20\x10\x0bgrpc-status\x010"),
        _frame(7, 0, 0, b"\0\0\0\1\0\0\0\0"),
    )
    sent = bytearray()

    answer = grpc.exchange(_reader(b"".join(frames)), sent.extend, "/a/b", b"hello")

    assert answer == b"hi"
    assert _frame(6, 1, 0, b"12345678") in sent, "a ping is answered in kind"
    assert sent.count(_frame(4, 1, 0, b"")) == 1, "settings are acknowledged once, acknowledgements not"
    assert sent.endswith(
        _frame(0, 1, 1, b"\0\0\0\0\5hello") + _frame(4, 1, 0, b"") + _frame(6, 1, 0, b"12345678")
    )


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\3hi", b"\1\0\0\0\2hi", b"\0\0\0\0\1hi"])
def test_an_answer_that_is_not_one_plain_message_is_refused(body: bytes) -> None:
    frames = _frame(1, 4, 1, b"\x88") + _frame(0, 0, 1, body) + _frame(1, 5, 1, b"\0\x0bgrpc-status\x010")

    with pytest.raises(grpc.CallFailed, match="not one plain message"):
        grpc.exchange(_reader(frames), bytearray().extend, "/a/b", b"")


@given(st.binary(max_size=200))
def test_no_bytes_make_the_call_fail_otherwise(sent: bytes) -> None:
    with pytest.raises((grpc.CallFailed, EOFError)):
        grpc.exchange(_reader(sent), bytearray().extend, "/a/b", b"")


@pytest.mark.parametrize(("text", "code"), HUFFMAN.items(), ids=HUFFMAN)
def test_huffman_codes_are_read_as_the_rfc_writes_them(text: str, code: str) -> None:
    raw = bytes.fromhex(code)

    assert hpack.decoded(b"\0\1x" + bytes([0x80 | len(raw)]) + raw) == [("x", text)]


@pytest.mark.parametrize(
    "code", ["00", "ff", "ffffffff"], ids=["no ones behind", "too many", "end of string"]
)
def test_a_huffman_code_that_is_not_filled_up_as_the_rfc_asks_is_refused(code: str) -> None:
    raw = bytes.fromhex(code)

    with pytest.raises(hpack.MalformedHeaders):
        hpack.decoded(b"\0\1x" + bytes([0x80 | len(raw)]) + raw)


@given(
    st.lists(st.tuples(st.text("abcdefghij-", max_size=300), st.text("xyz09 /", max_size=300)), max_size=5)
)
def test_headers_that_are_written_are_read_again(headers: list[tuple[str, str]]) -> None:
    assert hpack.decoded(hpack.encoded(headers)) == headers


@given(st.binary(max_size=60))
def test_no_block_makes_the_reading_of_headers_fail_otherwise(block: bytes) -> None:
    with suppress(hpack.MalformedHeaders):
        assert all(len(header) == 2 for header in hpack.decoded(block))


@given(st.binary(max_size=100))
def test_no_bytes_make_the_reading_of_an_answer_fail_otherwise(answer: bytes) -> None:
    with suppress(podresources.MalformedAnswer):
        assert all(each.devices for each in podresources.parsed(answer))


@pytest.mark.parametrize(
    "answer",
    [b"\x0a\x05ab", b"\x0b", b"\xff" * 11, b"\x0a\x04\x0a\x02\xff\xfe"],
    ids=["short", "group", "long", "text"],
)
def test_an_answer_that_is_none_is_told(answer: bytes) -> None:
    with pytest.raises(podresources.MalformedAnswer):
        podresources.parsed(answer)


def test_fields_of_a_later_kubelet_are_passed_over() -> None:
    later = b"\x78\x01" + b"\x7d\0\0\0\0" + b"\x79" + b"\7" * 8 + b"\x7a\2hi"
    group = b"\x0a\x0e" + GPU.encode() + later + b"\x12\x05GPU-1"
    container = _field(2, group) + later
    pod = _field(1, b"p") + later + _field(2, b"n") + _field(3, container)

    assert podresources.parsed(later + _field(1, pod)) == (PluginDevices("n", "p", ((GPU, "GPU-1"),)),)


def test_a_device_names_its_card_also_as_a_replica_of_it() -> None:
    uuids = frozenset({"GPU-aaaa", "GPU-bbbb", "MIG-cccc"})
    given = PluginDevices(
        "n", "p", ((GPU, "GPU-aaaa::3"), (GPU, "GPU-aaaa::4"), ("nvidia.com/mig-1g.10gb", "MIG-cccc"))
    )

    assert plugin_devices.cards_among(given, uuids) == ("GPU-aaaa", "MIG-cccc")
    assert plugin_devices.unknown_cards(given, uuids) == ()


def test_devices_of_nvidias_that_are_in_no_inventory_are_told_and_others_are_not() -> None:
    given = PluginDevices(
        "n", "p", ((GPU, "GPU-zzzz"), (GPU, "0"), ("nvidia.com/hostdev", "0"), ("rdma/hca", "m"))
    )

    assert plugin_devices.cards_among(given, frozenset({"GPU-aaaa"})) == ()
    assert plugin_devices.unknown_cards(given, frozenset({"GPU-aaaa"})) == ("GPU-zzzz", "0")


class _Peer:
    """A Unix socket at which somebody answers in his own way, once."""

    def __init__(self, path: Path, act: Callable[[socket.socket], None]) -> None:
        self._path, self._act = str(path), act
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> str:
        self._listener.bind(self._path)
        self._listener.listen(1)
        self._thread.start()
        return self._path

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            try:
                peer.recv(1 << 16)
                self._act(peer)
            except (BrokenPipeError, ConnectionResetError):
                return  # the caller has had enough


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2, len(body)]) + body


def _reader(sent: bytes) -> Callable[[int], bytes]:
    left = memoryview(sent)

    def read(count: int) -> bytes:
        nonlocal left
        taken, left = left[:count], left[count:]
        if len(taken) < count:
            raise EOFError
        return bytes(taken)

    return read
