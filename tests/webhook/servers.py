"""The webhook as a process, and a timekeeper of our own for it to ask, both over TLS on loopback."""

import gzip
import http.client
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from deploy.local.stack import free_port
from tests.support.waiting import eventually
from tests.webhook.worlds import review_of, standings
from tests.worlds import Json
from webhook.controller import files
from webhook.controller.issue import new_ca, new_leaf
from webhook.controller.plan import CertificatePair, Leaf

ROOT = Path(__file__).parent.parent.parent
WITHIN_S = 20.0


def runs(pid: int) -> bool:
    """True while the process is there and has not ended: a parent may be slow to take note of its end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class Tls:
    """A CA, and a folder with a leaf of it for loopback and other names: tls.crt, tls.key, ca.crt."""

    def __init__(self, folder: Path, ca: CertificatePair | None = None, names: tuple[str, ...] = ()) -> None:
        self.folder, self._names = folder, ("localhost", "127.0.0.1", *names)
        self.ca = ca or new_ca(b"", datetime.now(UTC))
        self.renew()

    def renew(self, life: timedelta = timedelta(days=30)) -> None:
        """Another leaf in place of the one that is there."""
        leaf = Leaf("webhook", self._names)
        files.write(self.folder, new_leaf(self.ca, leaf, datetime.now(UTC), life))

    def file(self, name: str) -> str:
        """The path of one of the files."""
        return str(self.folder / name)

    def client(self) -> ssl.SSLContext:
        """What a client trusts."""
        return ssl.create_default_context(cadata=self.ca.bundle.decode())


class Timekeeper:
    """Answers ``GET /v1/standings`` from ``document``, packed for who takes that; None answers 503. Remembers
    what it was asked with; ``spoilt`` packs what is no gzip."""

    def __init__(self, tls: Tls) -> None:
        self.document: Json | None = standings()
        self.spoilt = False
        self.asked: list[dict[str, str]] = []
        self.answered: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
                status, etag, body = outer.answer(self.headers.get("If-None-Match", ""))
                outer.answered.append(status)
                self.send_response(status)
                if body and self.headers.get("Accept-Encoding") == "gzip":
                    self.send_header("Content-Encoding", "gzip")
                    body = b"\x1f\x8bspoilt" if outer.spoilt else gzip.compress(body)
                self.send_header("ETag", etag)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._served = Served(Handler, tls)
        self.url = self._served.url

    def answer(self, known: str) -> tuple[int, str, bytes]:
        """Status, ETag and body for a caller that knows this ETag."""
        document = self.document
        if document is None:
            return 503, "", b"no"
        etag = f'"{document["revision"]}"'
        return (304, etag, b"") if known == etag else (200, etag, orjson.dumps(document))

    def end(self) -> None:
        """Stops answering."""
        self._served.end()


class _Server(ThreadingHTTPServer):
    """A client that does not trust us, or that leaves, is what a test may be about, and not worth a trace."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ssl.SSLError | ConnectionError):
            super().handle_error(request, client_address)


class Served:
    """A handler served over TLS on loopback, in threads of this process."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], tls: Tls) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.file("tls.crt"), tls.file("tls.key"))
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Webhook:
    """``python -m webhook`` with these flags, ready; ended by SIGTERM."""

    def __init__(self, folder: Path, tls: Tls, timekeeper_url: str, *flags: str, workers: int = 2) -> None:
        self.tls, self.port = tls, free_port()
        self.log_file = folder / "webhook.log"
        token = folder / "token"
        token.write_text("the-token\n")
        self.command = [
            *(
                sys.executable,
                "-m",
                "webhook",
                "--listen",
                f"127.0.0.1:{self.port}",
                "--workers",
                str(workers),
            ),
            *(
                "--tls-cert",
                tls.file("tls.crt"),
                "--tls-key",
                tls.file("tls.key"),
                "--ca",
                tls.file("ca.crt"),
            ),
            *("--timekeeper-url", timekeeper_url, "--token-file", str(token), *flags),
        ]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(self.command, stderr=log, cwd=ROOT, env=environment())

    def __enter__(self) -> Self:
        try:
            eventually(self._ready, "the webhook to be ready")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=WITHIN_S)
            finally:
                self.process.kill()
                self.process.wait()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"https://127.0.0.1:{self.port}"

    def log(self) -> str:
        """All that it has said."""
        return self.log_file.read_text(errors="replace")

    def connection(self) -> http.client.HTTPSConnection:
        """A connection of one's own."""
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=self.tls.client())

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """One request on a connection of its own: status and body."""
        connection = self.connection()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def review(self, path: str, raw: Json, **request: Any) -> Json:
        """The response to a review of this pod."""
        status, body = self.ask("POST", path, orjson.dumps(review_of(raw, **request)))
        assert status == 200, body
        response: Json = orjson.loads(body)["response"]
        return response

    def workers(self) -> list[int]:
        """The processes that review."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(each) for each in children.split()]

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False


def environment() -> dict[str, str]:
    """Nothing of the caller's but its path, its folder for temporary files, and what coverage needs."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
    return {"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": tempfile.gettempdir(), **kept}
