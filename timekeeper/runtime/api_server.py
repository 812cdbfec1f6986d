"""The calls that the extender makes to the API server: raw JSON over HTTP/1.1 with keep-alive.

What a caller must know of a call that changes something is whether it was done: `Answered` says what the API
server said, `Unsent` that it never heard of it, `Lost` that nobody knows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson
import urllib3
from kubernetes import client, config
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from timekeeper.core.json_values import Json
from timekeeper.core.kube.reflector import ExpiredError, UnreachableError

PAGE = 500
WATCH_S = 300
SILENCE_S = 90.0  # bookmarks come about each minute: a watch that says nothing for longer is dead
CONNECT_S = 2.0
LIST_S = 30.0

_A_KUBECONFIG = (
    "it must be a YAML file with clusters, users, contexts and current-context, as kubectl reads it, such as"
    " /etc/kubernetes/admin.conf"
)

STRATEGIC_MERGE = "application/strategic-merge-patch+json"


class NoConfigurationError(Exception):
    """There is no way to reach an API server; the text is for the person who started us."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The API server's answer."""

    status: int
    body: Json

    @property
    def message(self) -> str:
        """What it said, for people."""
        return str(self.body.get("message") or f"HTTP {self.status}")


@dataclass(frozen=True, slots=True)
class Unsent:
    """The call did not reach the API server: nothing was done."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer came: it may have been done, or may yet be."""

    why: str


Reply = Answered | Unsent | Lost


def _fault(error: Exception) -> str:
    """The package's own words where they are for people: of a file that is no kubeconfig it only names the
    inside of its parsers."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, config.ConfigException):
        return " ".join(str(error).split()).rstrip(".")
    return "it is no kubeconfig"


class Api:
    """The API server that a kubeconfig names, or the one of the cluster we run in."""

    def __init__(self, kubeconfig: Path | None, connections: int = 32) -> None:
        """Raises NoConfigurationError."""
        self._configuration = client.Configuration()
        self._configuration.connection_pool_maxsize = connections
        try:
            if kubeconfig is None:
                config.load_incluster_config(  # type: ignore[no-untyped-call]
                    client_configuration=self._configuration
                )
            else:
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    str(kubeconfig), client_configuration=self._configuration
                )
        except Exception as error:  # a malformed file leads the package to errors of any kind
            where = kubeconfig or "the pod's own service account (no --kubeconfig)"
            raise NoConfigurationError(f"cannot read {where}: {_fault(error)}; {_A_KUBECONFIG}") from error
        self._pool: urllib3.PoolManager = client.ApiClient(self._configuration).rest_client.pool_manager

    def close(self) -> None:
        """Lets go of the connections that nobody uses."""
        self._pool.clear()

    def pages(self, path: str) -> Iterator[tuple[list[Json], str]]:
        """Everything there is at the path, page by page, each with the list's resource version: read at
        quorum. Raises UnreachableError or ExpiredError."""
        more = ""
        while True:
            query = {"limit": str(PAGE)} | ({"continue": more} if more else {})
            reply = self.call("GET", f"{path}?{urlencode(query)}", timeout_s=LIST_S)
            page = _fine(reply)
            metadata = page.get("metadata") or {}
            yield page.get("items") or [], str(metadata.get("resourceVersion", ""))
            more = metadata.get("continue") or ""
            if not more:
                return

    def watch(self, path: str, version: str) -> Iterator[Json]:
        """The raw events from this resource version on, until the API server closes the stream. Raises
        UnreachableError or ExpiredError."""
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        query["timeoutSeconds"] = str(WATCH_S)
        timeout = urllib3.Timeout(connect=CONNECT_S, read=SILENCE_S)
        try:
            with self._request(
                "GET", f"{path}?{urlencode(query)}", None, {}, timeout, stream=True
            ) as response:
                if response.status != 200:
                    _fine(Answered(response.status, _json(response.read())))
                for line in _lines(response):
                    yield _event(line)
        except (HTTPError, OSError, orjson.JSONDecodeError) as error:
            raise UnreachableError(f"the watch of {path} broke: {error}") from error

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> Reply:
        """One call, in all at most as long as given."""
        sent = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"Content-Type": content_type}
        timeout = urllib3.Timeout(total=timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            response = self._request(method, path, sent, headers, timeout, stream=False)
            return Answered(response.status, _json(response.data))
        except (NewConnectionError, ConnectTimeoutError, SSLError) as error:
            return Unsent(f"the API server cannot be reached: {error}")
        except (HTTPError, OSError) as error:
            return Lost(f"the API server did not answer: {error}")

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: urllib3.Timeout,
        *,
        stream: bool,
    ) -> urllib3.BaseHTTPResponse:
        return self._pool.request(
            method,
            self._configuration.host + path,
            body=body,
            headers={"Accept": "application/json", **self._identity(), **headers},
            timeout=timeout,
            retries=False,
            preload_content=not stream,
        )

    def _identity(self) -> dict[str, str]:
        """The bearer token of this moment, which may be rotated."""
        settings: Mapping[str, Any] = dict(self._configuration.auth_settings())
        return {s["key"]: s["value"] for s in settings.values() if s["in"] == "header" and s["value"]}


def _fine(reply: Reply) -> Json:
    if isinstance(reply, Answered) and reply.status == 200:
        return reply.body
    if isinstance(reply, Answered) and reply.status == 410:
        raise ExpiredError
    raise UnreachableError(reply.message if isinstance(reply, Answered) else reply.why)


def _json(data: bytes) -> Json:
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {"message": data[:200].decode(errors="replace")}
    return body if isinstance(body, dict) else {}


def _event(line: bytes) -> Json:
    """One line of a watch. Raises UnreachableError for one that is no object."""
    event = orjson.loads(line)
    if not isinstance(event, dict):
        raise UnreachableError(f"a watch told something that is no event: {line[:100]!r}")
    return event


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for part in response.stream(65_536):
        *whole, rest = (rest + part).split(b"\n")
        yield from (line for line in whole if line)
