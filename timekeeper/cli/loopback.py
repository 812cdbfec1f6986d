"""A server on loopback that leads a browser to the timekeeper, which it verifies, and logs it in once."""

import html
import re
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode

from timekeeper.cli.client import Client
from timekeeper.cli.output import CommandError
from timekeeper.edge.http1 import HttpResponse

_OPEN = "/open/"
_MAX_BODY = 256 * 1024
_SENT = ("Accept", "Content-Type", "If-None-Match", "Sec-Fetch-Site")
_KEPT_BACK = ("connection", "content-length", "date", "server", "set-cookie", "transfer-encoding")
_AWAY = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta http-equiv="refresh" content="5">
<title>The timekeeper does not answer \u00b7 Bursar</title></head>
<body><h1>The timekeeper does not answer</h1>
{lines}
<p>This page is loaded again every 5 seconds. If the timekeeper is back and this page is not, it has another
pod: run <code>kubectl bursar dashboard</code> again.</p></body></html>
"""
_FORM_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]{64})"', re.ASCII)


def log_in(client: Client, token: str) -> list[str]:
    """The cookies of a session, as the timekeeper sets them. Raises CommandError."""
    page = client.forward("GET", "/login", {}, None)
    found = _FORM_TOKEN.search(page.body.decode(errors="replace"))
    if page.status != HTTPStatus.OK or found is None:
        raise CommandError("the timekeeper has no dashboard: is it older than this command?")
    cookies = _cookies(page)
    form = urlencode({"form_token": found[1], "token": token, "next": "/"})
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": "; ".join(map(_pair, cookies))}
    answer = client.forward("POST", "/login", sent, form.encode())
    if answer.status != HTTPStatus.SEE_OTHER:
        raise CommandError("the timekeeper did not accept the token; it must be for the audience bursar")
    return [*cookies, *_cookies(answer)]


class Loopback(ThreadingHTTPServer):
    """Serves on 127.0.0.1. ``port`` 0: any free one. ``cookies``: of the session that the first visitor of
    `address` gets; ``page``: where it is led; ``explain``: says more where the timekeeper does not
    answer. Raises CommandError where the port is not free."""

    daemon_threads = True

    def __init__(
        self,
        client: Client,
        cookies: list[str],
        page: str,
        port: int = 0,
        explain: Callable[[CommandError], CommandError] = lambda error: error,
    ) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise CommandError(
                f"--port {port}: cannot listen there: {error.strerror}; 0: any free port"
            ) from error
        self.client, self.page, self.explain = client, page, explain
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
        pairs = self.headers.get("Cookie", "").split("; ")  # also of other servers on loopback
        sent["Cookie"] = "; ".join(pair for pair in pairs if pair.startswith("bursar-"))
        try:
            self.server.client.probe()  # a report may take long; what hangs says so sooner
            answer = self.server.client.forward(self.command, self.path, sent, body)
        except CommandError as error:
            said = self.server.explain(error).message.splitlines()
            lines = "\n".join(f"<p>{html.escape(each[:1].upper() + each[1:])}</p>" for each in said)
            page = _AWAY.format(lines=lines).encode(errors="replace")
            self._answer(HTTPStatus.BAD_GATEWAY, {"Content-Type": "text/html; charset=utf-8"}, [], page)
            return
        kept = {name: value for name, value in answer.headers.items() if name not in _KEPT_BACK}
        self._answer(answer.status, kept, _cookies(answer), answer.body)

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


def _cookies(answer: HttpResponse) -> list[str]:
    return answer.headers.get("set-cookie", "").splitlines()


def _pair(cookie: str) -> str:
    return cookie.partition(";")[0]


def _for_loopback(cookie: str) -> str:
    """Some browsers refuse Secure cookies over HTTP, also on loopback."""
    return "; ".join(part for part in cookie.split("; ") if part.lower() != "secure")
