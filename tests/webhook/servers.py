"""The webhook as a process, and a timekeeper of our own for it to ask, both over TLS on loopback."""

import http.client
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.support.tls import Tls
from tests.support.tracing import variables
from tests.support.waiting import eventually
from tests.webhook.worlds import review_of
from tests.worlds import Json

ROOT = Path(__file__).parent.parent.parent


def runs(pid: int) -> bool:
    """True while the process is there and has not ended: a parent may be slow to take note of its end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class Webhook:
    """``python -m webhook`` with these flags, ready; ended by SIGTERM. ``through``: the module that runs it,
    in place of Python itself. ``prefix``: comes before the command."""

    def __init__(
        self,
        folder: Path,
        tls: Tls,
        timekeeper_url: str,
        *flags: str,
        workers: int = 2,
        through: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        self.tls, self.port = tls, free_port()
        self.log_file = folder / "webhook.log"
        token = folder / "token"
        token.write_text("the-token\n")
        self.command = [
            *(
                *prefix,
                sys.executable,
                "-m",
                *through,
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
            *("--timekeeper-url", timekeeper_url, "--token-file", str(token)),
            *("--metrics-access=open", *flags),
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
                self.process.wait(timeout=LONGEST_S)
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
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=LONGEST_S, context=self.tls.client()
        )

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


def environment(traced: bool = True) -> dict[str, str]:
    """Nothing of the caller's but its path, its folder for temporary files, and what coverage needs."""
    return {"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": tempfile.gettempdir(), **variables(traced)}
