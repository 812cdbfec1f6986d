"""A real ``python -m timekeeper`` over TLS, on an API server that is a fake or a real one."""

import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local.identity import new_authority
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.support import tracing
from tests.support.waiting import pause_s

WITHIN_S = LONGEST_S


@dataclass
class Process:
    """The flags of a timekeeper and, while it runs, its process. ``folder`` holds certificates, log and,
    where no ``url`` of a database is given, the ledger. ``traced``: it ends by itself or in order, so that
    coverage has its data."""

    folder: Path
    kubeconfig: Path
    launcher: Launcher
    more: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    path: str = field(default_factory=os.getcwd)
    running: "subprocess.Popen[bytes] | None" = None
    url: str = ""
    traced: bool = False
    prefix: Sequence[str] = ()  # before its command

    @property
    def database(self) -> Path:
        """The ledger's file."""
        return self.folder / "bursar.db"

    def command(self) -> list[str]:
        """Its command line."""
        files = {"tls-cert": "tls.crt", "tls-key": "tls.key", "ca": "ca.crt"}
        return [
            *(
                *self.prefix,
                sys.executable,
                "-m",
                "timekeeper",
                f"--listen=127.0.0.1:{self.port}",
                "--workers=1",
            ),
            *(f"--{flag}={self.folder / name}" for flag, name in files.items()),
            f"--database={self.url or f'sqlite:///{self.database}'}",
            f"--kubeconfig={self.kubeconfig}",
            "--metrics-access=open",
            *self.more,
        ]

    def start(self) -> None:
        """Start it; its output is added to the log."""
        with (self.folder / "log").open("ab") as log:
            environment = {
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "TMPDIR": str(self.folder),
                "PYTHONPATH": self.path,
                "PYTHONSAFEPATH": "1",  # not what is in the working directory
                **tracing.variables(self.traced),
            }
            self.running = self.launcher.start(self.command(), log, env=environment)

    def kill(self) -> None:
        """SIGKILL to it and all its children at once, as a node does that runs out of memory."""
        assert self.running is not None
        os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait()

    def end(self) -> int:
        """SIGTERM; the exit code."""
        assert self.running is not None
        self.running.send_signal(signal.SIGTERM)
        return self.running.wait(WITHIN_S)

    def log(self) -> str:
        """All it ever said."""
        return (self.folder / "log").read_text(errors="replace")

    def connection(self) -> http.client.HTTPSConnection:
        """A new connection, kept alive by its user."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=LONGEST_S, context=context)

    def call(self, method: str, path: str, token: str = "", body: Any = None) -> tuple[int, Any]:
        """One request; status 0 where nobody answers. JSON is decoded."""
        connection = self.connection()
        try:
            return send(connection, method, path, token, body)
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def wait(self, what: str, holds: Callable[[], bool], within_s: float = WITHIN_S) -> None:
        """Wait for a condition, as long as the process lives."""
        begun = time.monotonic()
        while not holds():
            assert self.running is None or self.running.poll() is None, self.log()[-4000:]
            assert time.monotonic() < begun + within_s, f"did not get {what}:\n{self.log()[-4000:]}"
            time.sleep(pause_s(begun))

    def wait_ready(self) -> None:
        """Until /readyz says so."""
        self.wait("/readyz", lambda: self.call("GET", "/readyz")[0] == 200)

    def start_ready(self) -> None:
        """Start it, and wait until it is ready."""
        self.start()
        self.wait_ready()


def send(
    connection: http.client.HTTPSConnection, method: str, path: str, token: str = "", body: Any = None
) -> tuple[int, Any]:
    """One request on a connection that is kept."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, headers)
    with connection.getresponse() as answer:  # its socket is its own once the server has said that it closes
        text = answer.read()
    is_json = "json" in (answer.headers.get("Content-Type") or "")
    return answer.status, json.loads(text) if is_json else text.decode()


@contextlib.contextmanager
def prepared(folder: Path, kubeconfig: Path, *more: str, traced: bool = False) -> Iterator[Process]:
    """A timekeeper that is ready to be started; nothing of it outlives the block."""
    authority = new_authority("timekeeper-tests")
    certificate, key = authority.leaf(["127.0.0.1"])
    for name, pem in (("ca.crt", authority.pem), ("tls.crt", certificate), ("tls.key", key)):
        (folder / name).write_bytes(pem)
    with Launcher() as launcher:
        yield Process(folder, kubeconfig, launcher, more, traced=traced)


def children(of: int) -> dict[str, list[int]]:
    """The process IDs below one, by their names."""
    found: dict[str, list[int]] = {}
    for pid in Path(f"/proc/{of}/task/{of}/children").read_text().split():
        with contextlib.suppress(OSError):
            found.setdefault(Path(f"/proc/{pid}/comm").read_text().strip(), []).append(int(pid))
    return found


@contextlib.contextmanager
def settler_stopped(supervisor: int) -> Iterator[None]:
    """The settler below this timekeeper stands still meanwhile: no tick comes."""
    (settler,) = children(supervisor)["settle"]
    os.kill(settler, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(settler, signal.SIGCONT)
