"""The kubelet's socket: absent, odd and slow peers."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from sidecar.node.kubelet import grpc, podresources


def test_a_socket_that_is_not_there_is_reported(tmp_path: Path) -> None:
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
    "headers that are cut off": (b"\0\0\1\1\5\0\0\0\1" + b"\x7f", "headers cannot be read"),
    "an entry that no table has": (b"\0\0\1\1\5\0\0\0\1" + b"\xbe", "headers cannot be read"),
    "all padding": (b"\0\0\1\0\x09\0\0\0\1" + b"\x09", "all padding"),
    "another status of HTTP": (b"\0\0\1\1\5\0\0\0\1" + b"\x8d", "HTTP 404"),
    "endless headers": ((b"\0\x40\0\x09\0\0\0\0\1" + bytes(1 << 14)) * 2, "headers are too long"),
}


@pytest.mark.parametrize(("sent", "said"), ODD_ANSWERS.values(), ids=ODD_ANSWERS)
def test_what_is_no_grpc_is_reported_and_never_waited_for(tmp_path: Path, sent: bytes, said: str) -> None:
    with (
        _Peer(tmp_path / "s", lambda peer: peer.sendall(sent)) as path,
        pytest.raises(grpc.CallFailed, match=said),
    ):
        grpc.call(path, "/a/b", timeout_s=LONGEST_S)


def test_a_peer_that_sends_a_byte_now_and_then_gets_no_more_time(tmp_path: Path) -> None:
    ended = threading.Event()

    def drip(peer: socket.socket) -> None:
        while not ended.wait(0.05):
            peer.sendall(b"\0")

    with _Peer(tmp_path / "s", drip) as path:
        with pytest.raises(grpc.CallFailed, match=r"no answer within 0\.3 s"):
            grpc.call(path, "/a/b", timeout_s=0.3)
        ended.set()


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
