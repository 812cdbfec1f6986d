"""Calls to the API server: raw JSON over HTTP/1.1 with keep-alive. Credentials come from `connect`.

A caller must know whether a call that changes something was done. `Answered`: the API server's answer.
`Unsent`: the call did not reach it. `Lost`: no answer came, and it may have been done.
"""

import socket
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any

import orjson

from timekeeper.core.json_values import Json
from timekeeper.edge.events import Send
from timekeeper.edge.http1 import TooLong
from timekeeper.edge.http_client import (
    FAILURES,
    HttpClient,
    HttpStream,
    NotConnected,
    Server,
    sentence,
    server_of,
)
from timekeeper.edge.lease import CALL_S, Call
from timekeeper.edge.list_watch import refused
from timekeeper.edge.mended_json import mending
from timekeeper.edge.reflector import TooLongError, UnreachableError
from timekeeper.runtime.clock import ServerClock

CONNECT_S = 2.0
LIST_S = 30.0
ANSWER_S = 15.0
EVENT_S = 2.0
CONNECTIONS = 32
_VERSION_S = 300.0  # between two looks at the version
LONGEST_PAUSE_S = 30  # before a busy API server is asked again
AGAIN_MS = 300_000  # between two looks for an API that is not served
_SOON_MS = 2_000  # after one that failed

_BUSY = (429, 502, 503, 504)

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"  # server-side
STRATEGIC_MERGE = "application/strategic-merge-patch+json"


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

    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer came, or one that was too long to read: it may have been done, or may yet be."""

    message: str
    is_too_long: bool = False


Reply = Answered | Unsent | Lost
RequestHeaders = Mapping[str, str | tuple[str, ...]]  # of several texts each has a line of its own


class Api:
    """The API server at ``url``. ``connect``: opens a connection within a number of seconds. ``identity``
    gives the headers that authenticate a call made now: a token may be rotated. Threads may share it. Not to
    be used across a fork, whose sides would share connections. Raises ValueError for what is no URL."""

    decode = staticmethod(mending(orjson.loads))

    def __init__(
        self,
        url: str,
        connect: Callable[[Server, float], socket.socket],
        identity: Callable[[], RequestHeaders],
        connections: int = CONNECTIONS,
    ) -> None:
        self._client = HttpClient(server_of(url), connect, connections, CONNECT_S)
        self._identity = identity
        weakref.finalize(self, self._client.close)
        self.clock = ServerClock()

    def close(self) -> None:
        """Closes the idle connections."""
        self._client.close()

    def version(self) -> Json:
        """What it says of its version; empty where it does not answer."""
        reply = self.call("GET", "/version", timeout_s=ANSWER_S)
        return reply.body if isinstance(reply, Answered) and reply.status == 200 else {}

    def serves(self, path: str) -> bool:
        """Whether it has this path. Raises UnreachableError or ExpiredError."""
        reply = self.call("GET", path, timeout_s=ANSWER_S)
        if isinstance(reply, Answered) and reply.status == 404:
            return False
        accepted(reply)
        return True

    def page(self, path: str) -> Json:
        """The body of a list. Raises UnreachableError or ExpiredError."""
        return accepted(self.call("GET", path, timeout_s=LIST_S))

    def stream(self, path: str, silence_s: float) -> HttpStream:
        """The answer to a watch. Raises `FAILURES`, as reading it does."""
        headers, sent = self._headers(), self.clock.sent()
        stream = self._client.stream(path, headers, silence_s=silence_s)
        self.clock.note(sent, stream.headers.get("date"))
        return stream

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float,
        tries: int = 1,
    ) -> Reply:
        """One call, which takes at most ``timeout_s`` once it is connected. While the API server is busy it
        is made again, ``tries`` times in all."""
        sent = None if body is None else orjson.dumps(body)
        content = {} if body is None else {"Content-Type": content_type}
        for pause_s in (*(0.5 * 2**at for at in range(tries - 1)), None):
            try:
                headers, at = {**self._headers(), **content}, self.clock.sent()
                response = self._client.call(
                    method, path, headers, sent, within_s=timeout_s, repeat=method == "GET"
                )
            except NotConnected as error:
                return Unsent(f"the API server cannot be reached: {self._client.server.authority}: {error}")
            except FAILURES as error:
                why = f"the API server does not answer: {sentence(error, timeout_s)}"
                return Lost(why, isinstance(error, TooLong))
            self.clock.note(at, response.headers.get("date"))
            if pause_s is None or response.status not in _BUSY:
                break
            after = response.headers.get("retry-after", "")
            time.sleep(min(int(after) if after.isdecimal() else pause_s, LONGEST_PAUSE_S))
        answer = _json(response.body)
        if answer is not None:
            return Answered(response.status, answer)
        if response.status < 300:  # something else answers: a proxy, or another server
            return Lost(f"the API server answers {response.status} without JSON")
        return Answered(response.status, {"message": response.body[:200].decode(errors="replace")})

    def _headers(self) -> RequestHeaders:
        try:
            return {"Accept": "application/json", **self._identity()}
        except Exception as error:  # a plugin that makes tokens can fail in any way
            raise NotConnected(f"the credentials cannot be read: {error}") from error


def follow_version(version: Callable[[], Json], heard: Callable[[Json], None], stop: Event) -> None:
    """Until ``stop``, pass on the API server's version every five minutes: it may be upgraded."""
    while not stop.wait(_VERSION_S):
        if said := version():
            heard(said)


def await_served(
    call: Callable[..., Reply],
    path: str,
    wait_ms: Callable[[int], object],
    failed: Callable[[str], None] = lambda _sentence: None,
    absent: Callable[[], None] = lambda: None,
    again_ms: int = AGAIN_MS,
) -> bool:
    """True once the API server serves the API at ``path``; False once ``wait_ms`` is true. ``failed`` is
    called with a sentence for each answer that does not say whether it does; ``absent`` for each that says
    that it does not."""
    while True:
        reply = call("GET", path, timeout_s=ANSWER_S)
        status = reply.status if isinstance(reply, Answered) else 0
        if status == 200:
            return True
        if status == 404:
            absent()
        else:
            failed(reply.message)
        if wait_ms(again_ms if status == 404 else _SOON_MS):
            return False


def event_sender(api: Api) -> Send:
    """Posts Events, for `timekeeper.edge.events`."""

    def send(path: str, event: Mapping[str, Any]) -> tuple[int, str]:
        reply = api.call("POST", path, event, timeout_s=EVENT_S)
        return reply.status if isinstance(reply, Answered) else 0, reply.message

    return send


def lease_caller(api: Api) -> Call:
    """Reads and writes a Lease, for `timekeeper.edge.lease`."""

    def call(method: str, path: str, body: Json | None) -> tuple[int, Json, str]:
        reply = api.call(method, path, body, timeout_s=CALL_S)
        if isinstance(reply, Answered):
            return reply.status, reply.body, reply.message
        return 0, {}, reply.message

    return call


def accepted(reply: Reply) -> Json:
    """The body of a 2xx answer. Raises ExpiredError for 410, and UnreachableError for any other reply:
    TooLongError where the answer is too long."""
    if isinstance(reply, Lost) and reply.is_too_long:
        raise TooLongError(reply.message)
    if not isinstance(reply, Answered):
        raise UnreachableError(reply.message)
    if reply.status >= 300:
        raise refused(reply.status, reply.message)
    return reply.body


def _json(data: bytes) -> Json | None:
    """The object; None for what is no JSON object."""
    try:
        body = Api.decode(data)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None
