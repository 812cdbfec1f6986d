"""A client of the API server: a call, lists and watches."""

from __future__ import annotations

import json

from sidecar.node.kube import trimmed_json
from timekeeper.edge import http1, http_client
from timekeeper.edge.http_client import HttpClient, server_of
from timekeeper.edge.list_watch import refused
from timekeeper.edge.reflector import TooLongError, UnreachableError
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    import ssl
    from typing import Any

    from timekeeper.edge.http_client import HttpStream

CALL_S = 10.0
JSON = "application/json"
MERGE = "application/merge-patch+json"
# Metadata only: the agent must not read the environment variables of other users' pods.
METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


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
        self._client = HttpClient(server_of(url), http_client.connecting(self._context), connect_s=CALL_S)
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
        """A call. Raises UnreachableError; a refusal is an answer."""
        try:
            headers = self._headers(accept)
            if body is not None:
                headers["Content-Type"] = content
            sent = None if body is None else json.dumps(body).encode()
            response = self._client.call(
                method, path, headers, sent, within_s=within_s, repeat=method == "GET"
            )
            return _answer(response.status, response.body)
        except http1.TooLong as error:
            raise TooLongError(str(error)) from None
        except (OSError, ValueError) as error:
            raise UnreachableError(reason(error, within_s)) from None

    def stream(self, path: str, accept: str, silence_s: float) -> HttpStream:
        """An answer that goes on for long. Raises `http_client.FAILURES`, as reading it does."""
        return self._client.stream(path, self._headers(accept), silence_s=silence_s)

    def close(self) -> None:
        """Close the connection that is kept. The next call opens another."""
        self._client.close()

    def _headers(self, accept: str) -> dict[str, str]:
        token = http_client.read_token(self._token_file)
        return {"Authorization": f"Bearer {token}", "Accept": accept, "User-Agent": "bursar-node"}

    def _context(self) -> ssl.SSLContext:
        return http_client.trusting(http_client.read_bundle(self._ca_file))


class NodeLists:
    """Lists and watches, for `edge.list_watch`. ``accept`` has ``{}`` for the word "List"."""

    decode = staticmethod(trimmed_json.loads)

    def __init__(self, api: NodeApi, accept: str) -> None:
        self._api, self._accept = api, accept

    def page(self, path: str) -> object:
        """The body of a list. Raises UnreachableError or ExpiredError."""
        answer = self._api.call("GET", path, accept=self._accept.format("List"))
        if answer.status != 200:
            raise refused(answer.status, answer.message)
        return answer.body

    def stream(self, path: str, silence_s: float) -> HttpStream:
        """The answer to a watch. Raises `http_client.FAILURES`, as reading it does."""
        return self._api.stream(path, self._accept.format(""), silence_s)


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
