"""A small client of the API server for the local control plane and its tests.

The calls of the main thread share a connection: a handshake takes several times the processor time of the
request itself. Every other call has its own.
"""

import http.client
import json
import select
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deploy.local.limits import LONGEST_S
from timekeeper.edge.mended_json import mending


class ApiError(Exception):
    """The API server answered with an error; `status` is the HTTP code, the text its message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def _ignored(warning: str) -> None:
    """As scripts do."""


_Key = tuple[str, Path]
_kept: dict[_Key, http.client.HTTPSConnection] = {}  # by the API server's address and CA


@dataclass(frozen=True, slots=True)
class AdminApi:
    """The API server at `url`, trusted by the CA in `ca_file`, called with a bearer token."""

    url: str
    ca_file: Path
    token: str = field(repr=False)
    user: str = ""  # acts as this one, where it is named
    on_warning: Callable[[str], None] = _ignored  # hears what kubectl prints behind `Warning: `

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float = LONGEST_S,
    ) -> Any:
        """Make a call with `body` as JSON. Returns the answer: decoded if it is JSON, else its text. Raises
        ApiError or OSError.
        """
        content = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        headers |= {"Impersonate-User": self.user} if self.user else {}
        request = (method, path, content, headers)
        is_main = threading.current_thread() is threading.main_thread()
        key = (self.url, self.ca_file)
        kept = _kept.pop(key, None) if is_main else None
        if kept is not None and _is_open(kept):
            try:
                return _result(*self._asked(kept, key, request, timeout_s))
            except (OSError, http.client.HTTPException):  # the server has closed it meanwhile
                if method != "GET":  # it may have been done
                    raise
        return _result(*self._asked(self._connection(), key if is_main else None, request, timeout_s))

    def _connection(self) -> http.client.HTTPSConnection:
        target = urlsplit(self.url)
        tls = ssl.create_default_context(cafile=str(self.ca_file))
        return http.client.HTTPSConnection(target.hostname or "", target.port, context=tls)

    def _asked(
        self,
        connection: http.client.HTTPSConnection,
        key: _Key | None,
        request: tuple[str, str, str | None, dict[str, str]],
        timeout_s: float,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer and its text. The connection is kept under ``key``, or closed."""
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        try:
            connection.request(*request)
            response = connection.getresponse()
            text = response.read()
            for header in response.headers.get_all("Warning", ()):  # of RFC 7234: 299 - "text"
                self.on_warning(json.loads(header.partition(" - ")[2]))
        except BaseException:
            connection.close()
            raise
        if key is None or key in _kept or response.will_close:
            connection.close()
        else:
            _kept[key] = connection
        return response, text

    def answers(self, path: str) -> bool:
        """Whether a GET succeeds now; False for every refusal and failure to connect."""
        try:
            self.call("GET", path, timeout_s=LONGEST_S)
        except (ApiError, OSError, http.client.HTTPException):
            return False
        return True


def _is_open(kept: http.client.HTTPSConnection) -> bool:
    """Whether the server has not closed it: nothing was asked, so all there could be to read is its end. One
    that is closed is left."""
    is_open = kept.sock is not None and not select.select([kept.sock], [], [], 0)[0]
    if not is_open:
        kept.close()
    return is_open


def _result(response: http.client.HTTPResponse, text: bytes) -> Any:
    is_json = (response.getheader("Content-Type") or "").startswith("application/json")
    body: Any = mending(json.loads)(text) if is_json else text.decode()
    if response.status >= 300:
        raise ApiError(response.status, body.get("message", text.decode()) if is_json else body)
    return body


def forget(url: str) -> None:
    """Close what is kept of the API server there."""
    for key in [key for key in _kept if key[0] == url]:
        _kept.pop(key).close()
