"""Sends posts to the timekeeper over one verified TLS connection that stays open between posts.

The token is read for each post, for it rotates. Ages are computed once the connection is open. If the server
closed the connection while it was idle, the post is sent again at once; after any other failure the caller
backs off.
"""

from __future__ import annotations

import io
import json
import socket
import ssl
import time

from sidecar import beats, http1, spool, trust
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.settings import SidecarSettings

PATH = "/v1/heartbeats"
TIMEOUT_S = 10
MAX_TOKEN = 65_536
MAX_BUNDLE = 1 << 20
MAX_REASON = 200


@value
class Delivered:
    """The timekeeper acknowledged the post."""

    reply: beats.HeartbeatReply


@value
class NotDelivered:
    """The post is not acknowledged. ``reason`` is a sentence without any token."""

    reason: str


NOT_KNOWN = NotDelivered("the timekeeper does not know this pod yet")


class CannotSend(Exception):
    """The post could not be sent. The text gives the reason, without the contents of any file."""


class HeartbeatClient:
    """The connection and its trust. One thread at a time may use it."""

    def __init__(
        self,
        settings: SidecarSettings,
        clock: Callable[[], int],
        remembered: tuple[str, str] | None,
        remember: Callable[[str, str], None],
        timeout_s: float = TIMEOUT_S,
        path: str = PATH,
        document: Callable[[Any, int], object] = spool.document,
    ) -> None:
        """``remembered``: the configured CA bundle and its successor, as an earlier process passed them to
        ``remember``. ``document``: makes the body of a post at a moment, for ``path``."""
        self._settings = settings
        self._clock = clock
        self._remembered = remembered
        self._remember = remember
        self._timeout_s = timeout_s
        self._path = settings.prefix + path
        self._document = document
        self._trust: trust.Trust | None = None
        self._socket: ssl.SSLSocket | None = None

    def deliver(self, post: Any) -> Delivered | NotDelivered:
        """Send the post. Never raises: a failure is a value with its reason."""
        try:
            return self._judge(self._exchange(post))
        except (OSError, http1.NotHTTP, CannotSend) as error:
            self.close()
            return NotDelivered(_reason(error, self._timeout_s))
        except Exception as error:
            # A defect of ours: the caller logs it once and goes on. Its text might quote the token.
            self.close()
            return NotDelivered(f"internal error: {type(error).__name__}")

    def close(self) -> None:
        """Close the connection. The next post opens another."""
        if self._socket:
            self._socket.close()
        self._socket = None

    def _exchange(self, post: Any) -> http1.HttpResponse:
        token = _token(self._settings.token_file)
        if self._socket:
            try:
                return self._talk(self._socket, post, token)
            except TimeoutError:
                raise
            except OSError:
                # Most likely the server closed it while it was idle. The sequence makes a repeat harmless.
                self.close()
        self._socket = self._connect()
        return self._talk(self._socket, post, token)

    def _talk(self, connection: ssl.SSLSocket, post: Any, token: str) -> http1.HttpResponse:
        body = json.dumps(self._document(post, self._clock()), separators=(",", ":")).encode()
        connection.settimeout(self._timeout_s)
        connection.sendall(http1.request(self._settings.authority, self._path, token, body))
        with io.BufferedReader(_DeadlineStream(connection, time.monotonic() + self._timeout_s)) as stream:
            response = http1.response(stream)
        if not response.keep:
            self.close()
        return response

    def _judge(self, response: http1.HttpResponse) -> Delivered | NotDelivered:
        if response.status == 404 and beats.is_unknown_pod(response.body):
            return NOT_KNOWN
        if response.status != 200:
            text = response.body[:MAX_REASON].decode("utf-8", "replace").strip()
            return NotDelivered(f"it answered {response.status} {text}".rstrip())
        reply = beats.read_reply(response.body)
        if reply is None:
            return NotDelivered("it answered 200, but the body is no heartbeat reply")
        self._follow(reply.ca)
        return Delivered(reply)

    def _follow(self, bundle: str | None) -> None:
        if self._trust is None:
            return
        followed = trust.offer(self._trust, bundle)
        if followed.offered and followed != self._trust:
            self.close()
        self._trust = followed

    def _connect(self) -> ssl.SSLSocket:
        configured = _bundle(self._settings.ca)
        if self._trust is None:
            self._trust = trust.start(configured, self._remembered)
        self._trust = trust.reconfigured(self._trust, configured)
        *offered, established = self._trust.bundles()
        for bundle in offered:
            try:
                return self._verified(bundle)
            except (ssl.SSLCertVerificationError, CannotSend):
                # The timekeeper's certificate is not (yet) signed by the offered CA: use the established one.
                continue
        return self._verified(established)

    def _verified(self, bundle: str) -> ssl.SSLSocket:
        connection = _tls((self._settings.host, self._settings.port), bundle, self._timeout_s)
        before, self._trust = self._trust, self._trust and trust.verified(self._trust, bundle)
        if self._trust and self._trust != before:
            self._remember(self._trust.configured, self._trust.established)
        return connection


class _DeadlineStream(io.RawIOBase):
    """Reads a connection until a deadline of the monotonic clock. With a timeout per read alone, a server
    that sends a byte now and then could hold us for days."""

    def __init__(self, connection: ssl.SSLSocket, until: float) -> None:
        self._connection = connection
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining_s = self._until - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining_s)
        return self._connection.recv_into(buffer)


def _tls(server: tuple[str, int], bundle: str, timeout_s: float) -> ssl.SSLSocket:
    """Connects and verifies that the bundle signs the server's certificate for this host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks chain and host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Comments between the certificates may be in any language; certificates are ASCII.
        context.load_verify_locations(cadata=bundle.encode("ascii", "ignore").decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise CannotSend("the CA bundle holds no readable certificate") from None
    # As bytes: a str would load the idna codec, whose tables take 0.4 MiB. Settings accept only ASCII.
    name = server[0].encode("ascii")
    raw = socket.create_connection((name, server[1]), timeout_s)  # type: ignore[arg-type] # getaddrinfo takes bytes
    try:
        return context.wrap_socket(raw, server_hostname=name)
    except BaseException:
        raw.close()
        raise


def _bundle(ca: str) -> str:
    if trust.PEM in ca:
        return ca
    try:
        with open(ca, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BUNDLE)
    except (OSError, ValueError) as error:
        raise CannotSend(f"the CA file {ca} cannot be read ({_cause(error)})") from None


def _token(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(MAX_TOKEN).strip()
    except (OSError, ValueError) as error:
        raise CannotSend(f"the token file {path} cannot be read ({_cause(error)})") from None
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise CannotSend(f"the token file {path} holds no token")
    return token


def _cause(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or "not ASCII"


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s} s"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
