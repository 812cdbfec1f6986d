"""The API server, as little of it as the agent needs: a call, and a watch of one list."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from urllib.parse import urlsplit

from sidecar.node.kube import trimmed_json
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CALL_S = 10.0
WATCH_S = 290
MOST_BYTES = 64 << 20  # of an answer, or of one object in a watch
JSON = "application/json"
MERGE = "application/merge-patch+json"
# only what stands in metadata: an agent has no business with the variables in other people's pods
METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


class ApiUnreachable(Exception):
    """The API server did not answer, or not what can be read; the text is for people."""


@value
class ApiAnswer:
    """``said``: the server's own words where it refused, else empty."""

    status: int
    body: Any
    said: str


class NodeApi:
    """Calls with the account's token, read afresh each time; each call has a connection of its own, and so
    threads may share it. Of the objects in answers, the metadata is cut (`lean`)."""

    def __init__(self, url: str, ca_file: str, token_file: str) -> None:
        self._url, self._ca_file, self._token_file = urlsplit(url), ca_file, token_file

    def call(
        self, method: str, path: str, body: object = None, content: str = JSON, accept: str = JSON
    ) -> ApiAnswer:
        """One call. Raises Unreached; a refusal is an answer."""
        connection = self._connection(CALL_S)
        try:
            response = self._sent(connection, method, path, body, content, accept)
            return _answer(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiUnreachable(reason(error)) from None
        finally:
            connection.close()

    def watch(self, path: str, accept: str = JSON) -> Iterator[dict[str, Any]]:
        """The events of a watch as they come, until the server ends it. Raises Unreached; a refusal too, with
        its words."""
        connection = self._connection(WATCH_S + CALL_S)
        try:
            response = self._sent(connection, "GET", path, None, JSON, accept)
            if response.status >= 300:
                raise ApiUnreachable(f"{response.status} {_answer(response).said}".strip())
            while line := response.readline(MOST_BYTES):
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
    """Finds out in half a minute that the other side is gone without a word, also while nothing is said."""

    def connect(self) -> None:
        """As its parent does; before TLS would be as well."""
        super().connect()
        for option, number in (
            (socket.TCP_KEEPIDLE, 15),
            (socket.TCP_KEEPINTVL, 5),
            (socket.TCP_KEEPCNT, 3),
        ):
            self.sock.setsockopt(socket.IPPROTO_TCP, option, number)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _answer(response: http.client.HTTPResponse) -> ApiAnswer:
    text = response.read(MOST_BYTES)
    try:
        body = trimmed_json.loads(text) if text else None
    except ValueError:
        if response.status < 300:
            raise
        body = None
    said = ""
    if response.status >= 300:
        told = body.get("message") if isinstance(body, dict) else None
        said = str(told or response.reason)
    return ApiAnswer(response.status, body, said)


def reason(error: Exception) -> str:
    """What went wrong, for people; never what a header holds."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__ if isinstance(error, ValueError) else str(error) or type(error).__name__
