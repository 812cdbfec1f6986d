"""A server on loopback that leads a browser to the timekeeper, which it verifies, and logs it in once."""

import re
import secrets
import sys
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode

from timekeeper.cli.client import Client
from timekeeper.cli.output import CommandError

_OPEN = "/open/"
_MAX_BODY = 256 * 1024
_SENT = ("Accept", "Content-Type", "Cookie", "If-None-Match", "Sec-Fetch-Site")
_KEPT_BACK = ("connection", "content-length", "date", "server", "set-cookie", "transfer-encoding")
_FORM_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]{64})"', re.ASCII)


def log_in(client: Client, token: str) -> list[str]:
    """The cookies of a session, as the timekeeper sets them. Raises CommandError."""
    status, headers, body = client.forward("GET", "/login", {}, None)
    found = _FORM_TOKEN.search(body.decode(errors="replace"))
    if status != HTTPStatus.OK or found is None:
        raise CommandError("the timekeeper has no dashboard: is it older than this command?")
    cookies = headers.getlist("Set-Cookie")
    form = urlencode({"form_token": found[1], "token": token, "next": "/"})
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": "; ".join(map(_pair, cookies))}
    status, headers, _ = client.forward("POST", "/login", sent, form.encode())
    if status != HTTPStatus.SEE_OTHER:
        raise CommandError("the timekeeper did not accept the token; it must be for the audience bursar")
    return [*cookies, *headers.getlist("Set-Cookie")]


class Loopback(ThreadingHTTPServer):
    """Serves on 127.0.0.1. ``port`` 0: any free one. ``cookies``: of the session that the first visitor of
    `address` gets; ``page``: where it is led. Raises CommandError where the port is not free."""

    daemon_threads = True

    def __init__(self, client: Client, cookies: list[str], page: str, port: int = 0) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise CommandError(
                f"--port {port}: cannot listen there: {error.strerror}; 0: any free port"
            ) from error
        self.client, self.page = client, page
        self._cookies: list[str] | None = cookies
        self._secret = secrets.token_urlsafe(32)
        self._lock = threading.Lock()

    @property
    def origin(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def address(self) -> str:
        """What the browser opens. It works once."""
        return f"{self.origin}{_OPEN}{self._secret}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called by socketserver. A browser that has left is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def taken(self, path: str) -> list[str] | None:
        """The cookies, if this is the address and they were not given yet; else None."""
        with self._lock:
            if not secrets.compare_digest(path.encode(), f"{_OPEN}{self._secret}".encode()):
                return None
            cookies, self._cookies = self._cookies, None
            return cookies


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Loopback

    def do_GET(self) -> None:
        """A page, or the login."""
        if not self.path.startswith(_OPEN):
            self._forward(None)
            return
        cookies = self.server.taken(self.path) if self._is_ours() else None
        if cookies is None:
            self._text(HTTPStatus.GONE, "This address works once. Run kubectl bursar dashboard again.")
            return
        self._answer(HTTPStatus.SEE_OTHER, {"Location": self.server.page}, cookies, b"")

    def do_POST(self) -> None:
        """A form."""
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > _MAX_BODY:
            self.close_connection = True
            self._text(HTTPStatus.BAD_REQUEST, "The body has no length, or is too large.")
            return
        self._forward(self.rfile.read(int(length)))

    def _forward(self, body: bytes | None) -> None:
        if not self._is_ours():
            self._text(HTTPStatus.MISDIRECTED_REQUEST, f"Use {self.server.origin}.")
            return
        sent = {name: self.headers[name] for name in _SENT if name in self.headers}
        try:
            status, headers, answer = self.server.client.forward(self.command, self.path, sent, body)
        except CommandError as error:
            self._text(HTTPStatus.BAD_GATEWAY, f"The timekeeper is not reached: {error.message}")
            return
        kept = {name: value for name, value in headers.items() if name.lower() not in _KEPT_BACK}
        self._answer(status, kept, headers.getlist("Set-Cookie"), answer)

    def _is_ours(self) -> bool:
        """False where a site of another name leads to this port."""
        return self.headers.get("Host") == self.server.origin.removeprefix("http://")

    def _text(self, status: HTTPStatus, sentence: str) -> None:
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        self._answer(status, headers, [], f"{sentence}\n".encode(errors="replace"))

    def _answer(self, status: int, headers: Mapping[str, str], cookies: list[str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        for cookie in cookies:
            self.send_header("Set-Cookie", _for_loopback(cookie))
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the terminal belongs to the command."""


def _pair(cookie: str) -> str:
    return cookie.partition(";")[0]


def _for_loopback(cookie: str) -> str:
    """Some browsers refuse Secure cookies over HTTP, also on loopback."""
    return "; ".join(part for part in cookie.split("; ") if part.lower() != "secure")
