"""Sends posts to the timekeeper over one verified TLS connection that stays open between posts.

The token is read for each post, for it rotates. Ages are computed once the connection is open. If the server
closed the connection while it was idle, the post is sent again at once; after any other failure the caller
backs off.
"""

from __future__ import annotations

import json
import ssl

from sidecar import beats, spool, trust
from timekeeper.edge import http_client
from timekeeper.edge.http_client import HttpClient, NotConnected
from timekeeper.edge.outbox import REFUSED, NotDelivered
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.settings import SidecarSettings
    from timekeeper.edge.http1 import HttpResponse
    from timekeeper.edge.http_client import Server

PATH = "/v1/heartbeats"
TIMEOUT_S = 10
MAX_BODY = 262_144
MAX_REASON = 200


@value
class Delivered:
    """The timekeeper acknowledged the post."""

    reply: beats.HeartbeatReply


NOT_KNOWN = NotDelivered("the timekeeper does not know this pod yet", False)


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
        self._path = path
        self._document = document
        self._trust: trust.Trust | None = None
        self._client = HttpClient(settings.server, self._connect)

    def deliver(self, post: Any) -> Delivered | NotDelivered:
        """Send the post. Never raises: a failure is a value with its reason."""
        try:
            token = http_client.read_token(self._settings.token_file)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            response = self._client.call(
                "POST",
                self._path,
                headers,
                lambda: json.dumps(self._document(post, self._clock()), separators=(",", ":")).encode(),
                within_s=self._timeout_s,
                repeat=True,  # the post's sequence makes a repeat harmless
                most=MAX_BODY,
            )
            return self._judge(response)
        except http_client.FAILURES as error:
            return NotDelivered(http_client.sentence(error, self._timeout_s), False)
        except Exception as error:
            # A defect of ours: the caller logs it once and goes on. Its text might quote the token.
            return NotDelivered(f"internal error: {type(error).__name__}", False)

    def close(self) -> None:
        """Close the connection. The next post opens another."""
        self._client.close()

    def _judge(self, response: HttpResponse) -> Delivered | NotDelivered:
        if response.status == 404 and beats.is_unknown_pod(response.body):
            return NOT_KNOWN
        if response.status != 200:
            text = response.body[:MAX_REASON].decode("utf-8", "replace").strip()
            is_final = response.status in REFUSED
            return NotDelivered(f"it answered {response.status} {text}".rstrip(), is_final)
        reply = beats.read_reply(response.body)
        if reply is None:
            return NotDelivered("it answered 200, but the body is no heartbeat reply", False)
        self._follow(reply.ca)
        return Delivered(reply)

    def _follow(self, bundle: str | None) -> None:
        if self._trust is None:
            return
        followed = trust.offer(self._trust, bundle)
        if followed.offered and followed != self._trust:
            self.close()
        self._trust = followed

    def _connect(self, server: Server, within_s: float) -> ssl.SSLSocket:
        ca = self._settings.ca
        configured = ca if http_client.PEM in ca else http_client.read_bundle(ca)
        if self._trust is None:
            self._trust = trust.start(configured, self._remembered)
        self._trust = trust.reconfigured(self._trust, configured)
        *offered, established = self._trust.bundles()
        for bundle in offered:
            try:
                return self._verified(server, bundle, within_s)
            except (ssl.SSLCertVerificationError, NotConnected):
                # The timekeeper's certificate is not (yet) signed by the offered CA: use the established one.
                continue
        return self._verified(server, established, within_s)

    def _verified(self, server: Server, bundle: str, within_s: float) -> ssl.SSLSocket:
        connection = http_client.tls(http_client.trusting(bundle), server, within_s)
        before, self._trust = self._trust, self._trust and trust.verified(self._trust, bundle)
        if self._trust and self._trust != before:
            self._remember(self._trust.configured, self._trust.established)
        return connection
