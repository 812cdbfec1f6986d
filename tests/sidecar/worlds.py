"""The small world of these tests: a timekeeper that speaks TLS and does as it is told, and real sidecars."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from deploy.local.identity import LocalAuthority
from deploy.local.limits import LONGEST_S
from sidecar.run import boot_ms
from tests.nvml import fake_nvml
from tests.support.http_server import JsonHandler

ROOT = Path(__file__).parent.parent.parent
WITHIN_S = LONGEST_S
INTERVAL_MS = 200


@dataclass(frozen=True, slots=True)
class Arrival:
    """A post as the timekeeper received it, and the moments of its beats by the sidecar's spool."""

    received_ms: int
    spooled_ms: list[int]
    path: str
    token: str
    document: Any

    @property
    def key(self) -> tuple[str, int]:
        """What makes a repeat recognisable."""
        return self.document["boot"], self.document["sequence"]

    def moments(self) -> list[int]:
        """When each beat was. The timekeeper dates them later, all by as much as the post was under way."""
        dated_ms = [self.received_ms - beat["age_ms"] for beat in self.document["beats"]]
        late_ms = {dated - at for dated, at in zip(dated_ms, self.spooled_ms, strict=True)}
        assert len(late_ms) == 1, (dated_ms, self.spooled_ms)
        assert late_ms.pop() >= 0, (dated_ms, self.spooled_ms)
        return self.spooled_ms


# What the timekeeper does with an arrival: a status with a body; or nothing more, for ever; or it hangs up;
# or it sends these pieces as they are.
HeartbeatReply = Callable[[Arrival], tuple[int, Any] | str | Iterable[bytes]]
SILENCE = "silence"
HANG_UP = "hang up"


# Pieces of an answer without an end, and the seconds between two of them.
ENDLESS = {
    "a letter now and then": (b"H", 0.05),
    "as if it were about to answer": (b"HTTP/1.1 100 Go on\r\n\r\n", 0.001),
}


def for_ever(piece: bytes, pause_s: float) -> Iterator[bytes]:
    """An answer without an end."""
    never = threading.Event()
    while not never.wait(pause_s):
        yield piece


def fine(_: Arrival, **more: object) -> tuple[int, Any]:
    """The answer of a timekeeper that is well."""
    return 200, {"version": 1, "interval_ms": INTERVAL_MS, "in_budget": True, **more}


class Timekeeper:
    """Listens on loopback while ``open``; may come back on the same port. ``arrivals`` keeps every post that
    was read whole, ``handshakes_failed`` counts the connections that the other side broke off."""

    def __init__(
        self, folder: Path, authority: LocalAuthority, names: Iterable[str] = ("127.0.0.1",)
    ) -> None:
        self.folder = folder
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.show(authority, names)
        self.answer: HeartbeatReply = fine
        self.arrivals: list[Arrival] = []
        self.handshakes_failed = 0
        self.connections = 0
        self._changed = threading.Condition()
        self._port = 0
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        """Where it listens, also while it is away."""
        return f"https://127.0.0.1:{self._port}"

    def show(self, authority: LocalAuthority, names: Iterable[str] = ("127.0.0.1",)) -> None:
        """From now on present to new connections a certificate of this authority's for these names."""
        certificate, key = authority.leaf(names)
        pair = self.folder / "server.pem"
        pair.write_bytes(certificate + key)
        self._context.load_cert_chain(pair)

    def start(self) -> None:
        """Begin to listen."""
        self._server = _Server(self._port, self._context, self)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Be away: the port refuses and every connection breaks."""
        if self._server:
            self._server.stop()
        self._server = None

    def hang_up(self) -> None:
        """Break every connection, but go on listening."""
        if self._server:
            self._server.break_connections()

    def wait(self, condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
        """Wait until something arrived that makes the condition hold."""
        with self._changed:
            assert self._changed.wait_for(condition, within_s), f"only {self.arrivals} within {within_s} s"

    def noted(self, change: Callable[[], None]) -> None:
        """Do the change and wake who waits."""
        with self._changed:
            change()
            self._changed.notify_all()

    def moments(self) -> list[int]:
        """When each beat was, in the order of arrival, a repeated post counted once."""
        first: dict[tuple[str, int], Arrival] = {}
        for each in self.arrivals:
            first.setdefault(each.key, each)
        return [moment for each in first.values() for moment in each.moments()]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, context: ssl.SSLContext, timekeeper: Timekeeper) -> None:
        self.context = context
        self.timekeeper = timekeeper
        self.closing = threading.Event()
        self.open: set[ssl.SSLSocket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def stop(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
        self.break_connections()

    def break_connections(self) -> None:
        for each in list(self.open):
            with suppress(OSError):  # the other side may have gone first
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that broke: what these tests are about, and nothing to print."""


class _Handler(JsonHandler):
    server: _Server

    def setup(self) -> None:
        self.request.settimeout(WITHIN_S)
        keeper = self.server.timekeeper
        keeper.noted(lambda: setattr(keeper, "connections", keeper.connections + 1))
        try:
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
        except OSError:
            keeper.noted(lambda: setattr(keeper, "handshakes_failed", keeper.handshakes_failed + 1))
            raise
        self.server.open.add(self.request)
        super().setup()

    def finish(self) -> None:
        self.server.open.discard(self.request)
        try:
            super().finish()
        finally:
            self.request.close()

    def do_POST(self) -> None:
        document = self.body()
        token = self.headers["Authorization"].removeprefix("Bearer ")
        keeper = self.server.timekeeper
        arrival = Arrival(boot_ms(), under_way(keeper.folder), self.path, token, document)
        answer = keeper.answer(arrival)
        keeper.noted(lambda: keeper.arrivals.append(arrival))
        if isinstance(answer, str):
            self.close_connection = True
            if answer == SILENCE:
                self.server.closing.wait(WITHIN_S)
            return
        if not isinstance(answer, tuple):
            self.close_connection = True
            for piece in answer:
                self.wfile.write(piece)
            return
        self.answer(*answer)


def events(log: str) -> list[str]:
    """The lines of a log without time, level and role: ``event=NAME key=value``."""
    return [line[line.index("event=") :] for line in log.splitlines() if "event=" in line]


class Sidecar:
    """A real ``python -m sidecar`` and the folder it lives in: token, CA and spool. ``prefix``: comes before
    the command."""

    def __init__(self, folder: Path, environ: dict[str, str], prefix: Sequence[str] = ()) -> None:
        self.folder = folder
        self._log = folder / "log"
        inherited = {
            name: each for name, each in os.environ.items() if not name.startswith(("BURSAR_", "NVIDIA_"))
        }
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "sidecar"],
                cwd=ROOT,
                stderr=log,
                env={**inherited, **environ},
            )

    def log(self) -> str:
        """What it and its predecessors in the folder have said."""
        return self._log.read_text()

    def kill(self) -> None:
        """End it as a machine out of memory would."""
        self.process.kill()
        self.process.wait(WITHIN_S)

    def end(self) -> int:
        """Ask it to end; its exit code. How long it waits: `tests/sidecar/unit/test_reporter.py`."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WITHIN_S)


def variables(folder: Path, url: str, authority: LocalAuthority, **more: str) -> dict[str, str]:
    """What the webhook would write into the sidecar's container; the token is ``first-token``."""
    token = folder / "token"
    if not token.exists():
        token.write_text("first-token\n")
    return {
        "BURSAR_TIMEKEEPER_URL": url,
        "BURSAR_TOKEN_FILE": str(token),
        "BURSAR_CA": authority.pem.decode(),
        "BURSAR_SPOOL": str(folder / "spool"),
        **more,
    }


@contextmanager
def beating(folder: Path, environ: dict[str, str], prefix: Sequence[str] = ()) -> Iterator[Sidecar]:
    """A sidecar that is gone at the end, whatever happened."""
    sidecar = Sidecar(folder, environ, prefix)
    try:
        yield sidecar
    finally:
        sidecar.kill()


def spooled(folder: Path) -> list[int]:
    """The moments of the beats that the sidecar holds on disk, oldest first."""
    read = _spool(folder)
    return [at for at, _ in (read["post"] or {"beats": []})["beats"] + read["waiting"]]


def under_way(folder: Path) -> list[int]:
    """The moments of those that are in the post under way."""
    return [at for at, _ in (_spool(folder)["post"] or {}).get("beats", ())]


def _spool(folder: Path) -> Any:
    path = folder / "spool" / "spool.json"
    return json.loads(path.read_text()) if path.is_file() else {"post": None, "waiting": []}


def read_by_nvml(
    folder: Path, script: str, arguments: object, description: str = ""
) -> tuple[list[Any], str]:
    """The lines of JSON that a script writes in a process whose NVML is as described, and what it logs; its
    one argument is JSON too."""
    run = subprocess.run(
        [sys.executable, "-c", script, json.dumps(arguments)],
        cwd=ROOT,
        env={**os.environ, **fake_nvml(folder, description)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()], run.stderr
