"""A client of the API server: a call, and a watch of a list."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from urllib.parse import urlsplit

from sidecar.node.kube import trimmed_json
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CALL_S = 10.0
WATCH_S = 290
MAX_BYTES = 64 << 20  # of an answer, or of one object in a watch
JSON = "application/json"
MERGE = "application/merge-patch+json"
# Metadata only: the agent must not read the environment variables of other users' pods.
METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


class ApiUnreachable(Exception):
    """The API server did not answer, or its answer is malformed. The text is for people."""


@value
class ApiAnswer:
    """The answer to a call."""

    status: int
    body: Any
    message: str  # the server's, if it refused; else empty


class NodeApi:
    """Each call reads the service account's token and opens a connection of its own, so threads may share the
    client. Objects' metadata is trimmed (`trimmed_json`)."""

    def __init__(self, url: str, ca_file: str, token_file: str) -> None:
        self._url, self._ca_file, self._token_file = urlsplit(url), ca_file, token_file

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = JSON,
        accept: str = JSON,
        within_s: float = CALL_S,
    ) -> ApiAnswer:
        """A call. Raises ApiUnreachable; a refusal is an answer."""
        connection = self._connection(within_s)
        try:
            response = self._sent(connection, method, path, body, content, accept)
            return _answer(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiUnreachable(reason(error)) from None
        finally:
            connection.close()

    def watch(self, path: str, accept: str = JSON) -> Iterator[dict[str, Any]]:
        """The events of a watch, until the server ends it. Raises ApiUnreachable, also if the server
        refuses."""
        connection = self._connection(WATCH_S + CALL_S)
        try:
            response = self._sent(connection, "GET", path, None, JSON, accept)
            if response.status >= 300:
                raise ApiUnreachable(f"{response.status} {_answer(response).message}".strip())
            while line := response.readline(MAX_BYTES):
                yield trimmed_json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiUnreachable(reason(error)) from None
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port or 443
        try:
            tls = ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ValueError) as error:
            raise ApiUnreachable(f"the CA file {self._ca_file} cannot be read ({reason(error)})") from None
        return _KeepAliveConnection(host, port, context=tls, timeout=timeout_s)

    def _sent(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: object,
        content: str,
        accept: str,
    ) -> http.client.HTTPResponse:
        with open(self._token_file, encoding="ascii") as file:
            token = file.read().strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": accept, "User-Agent": "bursar-node"}
        if body is not None:
            headers["Content-Type"] = content
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse()


class _KeepAliveConnection(http.client.HTTPSConnection):
    """Detects within 30 s that the server is gone, also on an idle watch."""

    def connect(self) -> None:
        """As in the base class, with keep-alive."""
        super().connect()
        for option, number in (
            (socket.TCP_KEEPIDLE, 15),
            (socket.TCP_KEEPINTVL, 5),
            (socket.TCP_KEEPCNT, 3),
        ):
            self.sock.setsockopt(socket.IPPROTO_TCP, option, number)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _answer(response: http.client.HTTPResponse) -> ApiAnswer:
    text = response.read(MAX_BYTES)
    try:
        body = trimmed_json.loads(text) if text else None
    except ValueError:
        if response.status < 300:
            raise
        body = None
    message = ""
    if response.status >= 300:
        message = str((body.get("message") if isinstance(body, dict) else None) or response.reason)
    return ApiAnswer(response.status, body, message)


def reason(error: Exception) -> str:
    """The error for people, never with the contents of a header."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__ if isinstance(error, ValueError) else str(error) or type(error).__name__
