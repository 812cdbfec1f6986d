"""A client of the API server: a call, and a watch of a list."""

from __future__ import annotations

import json
from contextlib import closing

from sidecar.node.kube import trimmed_json
from timekeeper.edge import http_client
from timekeeper.edge.http_client import HttpClient, server_of
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from typing import Any

CALL_S = 10.0
WATCH_S = 290
SILENCE_S = 90.0  # bookmarks come about each minute: a watch that is silent for longer is dead
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
    """Each call reads the service account's token. Threads may share the client. Objects' metadata is trimmed
    (`trimmed_json`)."""

    def __init__(self, url: str, ca_file: str, token_file: str) -> None:
        self._client = HttpClient(server_of(url), http_client.connecting(self._context))
        self._ca_file, self._token_file = ca_file, token_file

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
        try:
            headers = self._headers(accept)
            if body is not None:
                headers["Content-Type"] = content
            sent = None if body is None else json.dumps(body).encode()
            response = self._client.call(
                method, path, headers, sent, within_s=within_s, repeat=method == "GET"
            )
            return _answer(response.status, response.body)
        except (OSError, ValueError) as error:
            raise ApiUnreachable(reason(error, within_s)) from None

    def watch(self, path: str, accept: str = JSON) -> Iterator[dict[str, Any]]:
        """The events of a watch, until the server ends it. Raises ApiUnreachable, also if the server
        refuses."""
        try:
            with closing(self._client.stream(path, self._headers(accept), silence_s=SILENCE_S)) as stream:
                if stream.status >= 300:
                    raise ApiUnreachable(f"{stream.status} {_answer(stream.status, stream.body()).message}")
                for line in stream.lines():
                    yield trimmed_json.loads(line)
        except (OSError, ValueError) as error:
            raise ApiUnreachable(reason(error, SILENCE_S)) from None

    def close(self) -> None:
        """Close the connection that is kept. The next call opens another."""
        self._client.close()

    def _headers(self, accept: str) -> dict[str, str]:
        token = http_client.read_token(self._token_file)
        return {"Authorization": f"Bearer {token}", "Accept": accept, "User-Agent": "bursar-node"}

    def _context(self) -> ssl.SSLContext:
        return http_client.trusting(http_client.read_bundle(self._ca_file))


def _answer(status: int, text: bytes) -> ApiAnswer:
    try:
        body = trimmed_json.loads(text) if text else None
    except ValueError:
        if status < 300:
            raise
        body = None
    message = ""
    if status >= 300:
        message = str((body.get("message") if isinstance(body, dict) else None) or f"HTTP {status}")
    return ApiAnswer(status, body, message)


def reason(error: Exception, within_s: float) -> str:
    """The error for people, never with the contents of a header or an object."""
    is_ours = isinstance(error, http_client.FAILURES)
    return http_client.sentence(error, within_s) if is_ours else type(error).__name__
