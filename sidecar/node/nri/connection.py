"""A connection to the runtime's NRI socket: ttrpc in both directions over one stream.

A frame begins with the number of its channel and a length, of four bytes each (containerd/nri,
pkg/net/multiplex). On channel 1 the runtime calls the plugin, on channel 2 the plugin the runtime. A message
of ttrpc begins with its length, the number of its stream, its type and flags (containerd/ttrpc, PROTOCOL.md).
"""

from __future__ import annotations

import socket
import struct

from google.protobuf.message import DecodeError

from sidecar.node.nri.messages import message, parsed
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

OF_PLUGIN, OF_RUNTIME = 1, 2
MAX_MESSAGE = 4 << 20
CONNECT_S = 5.0
_FRAME, _HEAD = struct.Struct(">II"), struct.Struct(">IIBB")
_REQUEST, _RESPONSE = 1, 2
_UNKNOWN, _UNIMPLEMENTED = 2, 12  # google.rpc's codes
_RUNTIME = "nri.pkg.api.v1alpha1.Runtime"


class Broken(Exception):
    """The connection has ended, or the peer does not speak NRI. The text gives the reason."""


class Failed(Exception):
    """A call fails with this sentence; the connection goes on."""


class NriConnection:
    """One connection. One thread uses it."""

    def __init__(self, path: str) -> None:
        """Raises `Broken`."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._received = {OF_PLUGIN: bytearray(), OF_RUNTIME: bytearray()}
        self._buffer = bytearray()
        try:
            self._socket.settimeout(CONNECT_S)
            self._socket.connect(path)
            self._socket.settimeout(None)
        except OSError as error:
            self.close()
            raise Broken(error.strerror or str(error)) from None

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def serve(self, name: str, index: str, methods: dict[str, Callable[[bytes], bytes]]) -> None:
        """Register the plugin and answer the runtime's calls until the connection ends. ``methods``: by name,
        from the request to the answer; one that raises `Failed` refuses. Raises `Broken`."""
        register = message("RegisterPlugin", plugin_name=name, plugin_idx=index).SerializeToString()
        call = message("Request", service=_RUNTIME, method="RegisterPlugin", payload=register)
        self._send(OF_RUNTIME, 1, _REQUEST, call.SerializeToString())
        while True:
            channel, stream, kind, body = self._next()
            try:
                if channel == OF_PLUGIN and kind == _REQUEST:
                    self._send(channel, stream, _RESPONSE, _answer(parsed("Request", body), methods))
                elif channel == OF_RUNTIME and kind == _RESPONSE:
                    status = parsed("Response", body).status
                    if status.code:
                        raise Broken(f"the runtime refuses the plugin: {status.message}")
            except DecodeError:
                raise Broken("a message cannot be read") from None

    def _send(self, channel: int, stream: int, kind: int, body: bytes) -> None:
        whole = _HEAD.pack(len(body), stream, kind, 0) + body
        try:
            self._socket.sendall(_FRAME.pack(channel, len(whole)) + whole)
        except OSError as error:
            raise Broken(error.strerror or str(error)) from None

    def _next(self) -> tuple[int, int, int, bytes]:
        """Channel, stream, type and body of the next message."""
        while True:
            for channel, received in self._received.items():
                if len(received) < _HEAD.size:
                    continue
                length, stream, kind, _ = _HEAD.unpack_from(received)
                if length > MAX_MESSAGE:
                    raise Broken("a message is too long")
                end = _HEAD.size + length
                if len(received) >= end:
                    body = bytes(received[_HEAD.size : end])
                    del received[:end]
                    return channel, stream, kind, body
            channel, length = _FRAME.unpack(self._read(_FRAME.size))
            if length > MAX_MESSAGE + _HEAD.size:
                raise Broken("a frame is too long")
            payload = self._read(length)
            if channel in self._received:
                self._received[channel] += payload

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                got = self._socket.recv(max(count - len(self._buffer), 4096))
            except OSError as error:
                raise Broken(error.strerror or str(error)) from None
            if not got:
                raise Broken("the runtime closed the connection")
            self._buffer += got
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


def _answer(request: object, methods: dict[str, Callable[[bytes], bytes]]) -> bytes:
    method = methods.get(request.method)  # type: ignore[attr-defined]  # of protobuf
    if method is None:
        status = message("Status", code=_UNIMPLEMENTED, message=f"no method {request.method}")  # type: ignore[attr-defined]
        return bytes(message("Response", status=status).SerializeToString())
    try:
        answer = message("Response", payload=method(request.payload))  # type: ignore[attr-defined]
    except Failed as error:
        answer = message("Response", status=message("Status", code=_UNKNOWN, message=str(error)))
    return bytes(answer.SerializeToString())
