"""A real registry on the loopback, with tokens where it asks for them, and faults between it and a client."""

import base64
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from deploy.local.build import binaries
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from deploy.local.tools import REGISTRY_TOOL
from tests.support.oidc_issuer import base64url
from tests.support.waiting import eventually

SERVICE = "bursar-test"
ACCOUNT = "pusher:secret"


@contextmanager
def registry(folder: Path, *, readonly: bool = False, tokens: "Tokens | None" = None) -> Iterator[int]:
    """The port of a registry that keeps its contents in a folder."""
    port = free_port()
    told: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "data")},
            "maintenance": {"readonly": {"enabled": readonly}},
        },
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if tokens:
        (folder / "keys.json").write_text(json.dumps({"keys": [tokens.public]}))
        known = {"realm": tokens.url, "service": SERVICE, "issuer": "test", "jwks": str(folder / "keys.json")}
        told["auth"] = {"token": known}
    (folder / "registry.yaml").write_text(yaml.safe_dump(told))
    program = binaries(print, (REGISTRY_TOOL,))[REGISTRY_TOOL.name]
    with Launcher() as launcher, (folder / "log").open("wb") as log:
        command = [str(program), "serve", str(folder / "registry.yaml")]
        process = launcher.start(command, log, {"OTEL_TRACES_EXPORTER": "none"}, folder)
        eventually(lambda: _answers(port))
        yield port
        process.terminate()
        process.wait(LONGEST_S)


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Tokens:
    """A server of tokens: an account that it knows may push."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self._key = ec.generate_private_key(ec.SECP256R1())
        point = self._key.public_key().public_numbers()
        x, y = (base64url(each.to_bytes(32, "big")) for each in (point.x, point.y))
        self.public = {
            "kty": "EC",
            "crv": "P-256",
            "kid": "one",
            "alg": "ES256",
            "use": "sig",
            "x": x,
            "y": y,
        }

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Give a token for the asked scopes, or 401."""
        given = request.headers.get("Authorization", "").removeprefix("Basic ")
        scopes = parse_qs(urlsplit(request.path).query).get("scope", [])
        self.asked += scopes
        if base64.b64decode(given).decode() == ACCOUNT:
            reply(request, 200, json.dumps({"token": self._signed(scopes)}).encode())
        else:
            reply(request, 401, b"{}")

    def _signed(self, scopes: list[str]) -> str:
        now = int(time.time())
        parts = [scope.split(":") for scope in scopes]
        access = [{"type": kind, "name": name, "actions": of.split(",")} for kind, name, of in parts]
        times = {"iat": now, "nbf": now - 10, "exp": now + 300}
        claims = {"iss": "test", "sub": "pusher", "aud": SERVICE, "jti": "1", "access": access, **times}
        header = {"typ": "JWT", "alg": "ES256", "kid": "one"}
        text = ".".join(base64url(json.dumps(each).encode()) for each in (header, claims))
        r, s = decode_dss_signature(self._key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


@dataclass
class Faults:
    """What stands between a client and a registry: it answers 429 this often, and breaks this many uploads in
    their middle."""

    port: int = 0
    too_many: int = 0
    breaks: int = 0
    stalls: threading.Event | None = None  # until it is set, no upload is answered
    seen: list[str] = field(default_factory=list)
    seen_bytes: list[int] = field(default_factory=list)  # of each upload that broke
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Pass a request on, or fail it."""
        fault = self._fault(request.command)
        if fault == "429":
            request.close_connection = True
            reply(request, 429, b"{}", {"Retry-After": "1"})
            return
        size = int(request.headers.get("Content-Length") or 0)
        if self.stalls and request.command in ("PATCH", "PUT"):
            self.stalls.wait(LONGEST_S)
            request.close_connection = True
            return
        if fault == "break":
            self.seen_bytes.append(len(request.rfile.read(size // 2 or 100)))
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        self._pass_on(request, _body(request, size))

    def _fault(self, method: str) -> str:
        with self.lock:
            if method == "POST" and self.too_many:
                self.too_many -= 1
                self.seen.append("429")
                return "429"
            if method in ("PATCH", "PUT") and self.breaks:
                self.breaks -= 1
                self.seen.append("break")
                return "break"
        return ""

    def _pass_on(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        upstream = HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        headers = {
            k: v for k, v in request.headers.items() if k not in ("Transfer-Encoding", "Content-Length")
        }
        upstream.request(request.command, request.path, body, headers)
        answer = upstream.getresponse()
        kept = {k: v for k, v in answer.getheaders() if k not in ("Content-Length", "Connection", "Date")}
        content = answer.read()
        length = answer.getheader("Content-Length") if request.command == "HEAD" else None
        upstream.close()
        reply(request, answer.status, content, kept, length)


def _body(request: BaseHTTPRequestHandler, size: int) -> bytes:
    if request.headers.get("Transfer-Encoding") != "chunked":
        return request.rfile.read(size)
    parts = []
    while length := int(request.rfile.readline(), 16):
        parts.append(request.rfile.read(length))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(parts)


def reply(
    request: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    length: str | None = None,
) -> None:
    """Answer a request."""
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", length or str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def serving(answers: Tokens | Faults) -> Iterator[str]:
    """The address where these answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def handle_any(self) -> None:
            answers.answer(self)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = handle_any

    with ExitStack() as ended, ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        ended.callback(thread.join)
        ended.callback(server.shutdown)
        yield f"127.0.0.1:{server.server_port}"


def digest(address: str, repository: str, tag: str) -> str:
    """What a registry has under a tag."""
    accepted = {"Accept": "application/vnd.oci.image.index.v1+json"}
    asked = urllib.request.Request(f"http://{address}/v2/{repository}/manifests/{tag}", headers=accepted)
    with urllib.request.urlopen(asked, timeout=LONGEST_S) as answer:
        return str(answer.headers["Docker-Content-Digest"])
