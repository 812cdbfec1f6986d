"""The servers of all roles as processes over TLS, for hostile clients."""

import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from deploy.local.identity import new_authority
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.scheduler_ext.apiserver import api_server
from tests.scheduler_ext.processes import Process as Extender
from tests.scheduler_ext.worlds import node
from tests.support.kubeconfig import kubeconfig
from tests.support.simulated_timekeeper import SimulatedTimekeeper
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.timekeeper import fake_api_server
from tests.timekeeper.processes import prepared
from tests.webhook.servers import Webhook
from tests.webhook.worlds import admitted, half, review_of

REVIEW = orjson.dumps(review_of(admitted(half())))


@dataclass(frozen=True)
class Server:
    """A server: where it listens, what its clients trust, and a request of its own that is posted."""

    port: int
    tls: ssl.SSLContext
    pids: Callable[[], list[int]]
    path: bytes  # of POST requests
    body: bytes
    status: int  # of its answer
    largest_body: int
    most_connections: int

    def connect(self) -> ssl.SSLSocket:
        """A connection after its handshake."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=LONGEST_S)
        return self.tls.wrap_socket(raw, server_hostname="127.0.0.1")

    def answers_well_behaved_clients(self) -> bool:
        """Both to the route that is posted to and to a route of the pool."""
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        posted = self._answer(head % (self.path, len(self.body)) + self.body)
        alive = self._answer(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return posted.startswith(b"HTTP/1.1 %d " % self.status) and alive.startswith(b"HTTP/1.1 200 ")

    def _answer(self, request: bytes) -> bytes:
        """On a connection of its own, for a crowded server ends each with its answer."""
        with self.connect() as client:
            client.sendall(request)
            return all_of(client)

    def connections(self) -> int:
        """How many clients its processes hold."""
        held = set()
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == self.port and fields[3] in ("01", "08"):
                held.add(f"socket:[{fields[9]}]")
        links = set()
        for pid in self.pids():
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    links.add(os.readlink(each))
        return len(held & links)

    def resident_kib(self) -> int:
        """The memory of its processes."""
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids()]
        return sum(int(text.partition("VmRSS:")[2].split()[0]) for text in statuses)


@contextlib.contextmanager
def timekeeper(folder: Path) -> Iterator[Server]:
    """With one worker of one thread; a heartbeat without a token is answered with 401."""
    api = fake_api_server.FakeApiServer()
    with (
        fake_api_server.serving(api) as url,
        prepared(folder, kubeconfig(folder, url), "--threads=1") as process,
    ):
        process.start()
        process.wait("/livez", lambda: process.call("GET", "/livez")[0] == 200)
        trusted = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        assert process.running is not None
        top = process.running.pid
        yield Server(
            process.port, trusted, lambda: descendants(top), b"/v1/heartbeats", b"{}", 401, 256 * 1024, 4_000
        )
        assert "event=malformed-request peer=127.0.0.1 status=400" in process.log()
        assert "Traceback" not in process.log()


@contextlib.contextmanager
def webhook(folder: Path) -> Iterator[Server]:
    """With one worker; a review is answered with 200."""
    tls = Tls(folder / "tls")
    with (
        SimulatedTimekeeper(tls) as standings,
        Webhook(folder, tls, standings.url, workers=1) as process,
    ):
        yield Server(
            process.port, tls.client(), process.workers, b"/mutate", REVIEW, 200, 8 * 1024 * 1024, 1000
        )
        assert "Traceback" not in process.log()


@contextlib.contextmanager
def extender(folder: Path) -> Iterator[Server]:
    """With mutual TLS and one thread; a body that is no JSON is answered with 400."""
    authority = new_authority("callers")
    for name, (certificate, key) in {
        "tls": authority.leaf(["127.0.0.1"]),
        "client": authority.leaf(["system:kube-scheduler"], client=True),
    }.items():
        (folder / f"{name}.crt").write_bytes(certificate)
        (folder / f"{name}.key").write_bytes(key)
    (folder / "ca.crt").write_bytes(authority.pem)
    files = {"tls-cert": "tls.crt", "tls-key": "tls.key", "client-ca": "ca.crt"}
    with api_server() as api:
        api.put("nodes", node("a"))
        flags = [f"--{flag}={folder / name}" for flag, name in files.items()]
        process = Extender(folder, f"--kubeconfig={kubeconfig(folder, api.url)}", "--threads=1", *flags)
        trusted = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        trusted.load_cert_chain(folder / "client.crt", folder / "client.key")
        process.start()
        try:
            eventually(lambda: "event=complete" in process.said(), "the extender to be ready")
            yield Server(process.port, trusted, process.pids, b"/filter", b"{", 400, 32 * 1024 * 1024, 512)
            assert "Traceback" not in process.said()
        finally:
            process.kill()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Server]:
    """The extender's read-only port; what is posted without a token is answered with 401."""
    tls, number = Tls(folder / "tls"), free_port()
    with api_server() as api:
        api.put("nodes", node("a"))
        files = [
            f"--read-tls-{part}={tls.file(f'tls.{name}')}" for part, name in (("cert", "crt"), ("key", "key"))
        ]
        process = Extender(
            folder, f"--kubeconfig={kubeconfig(folder, api.url)}", f"--read-listen=127.0.0.1:{number}", *files
        )
        process.start_ready()
        try:
            yield Server(number, tls.client(), process.pids, b"/v1/simulate", b"{}", 401, 4 * 1024 * 1024, 64)
            assert "Traceback" not in process.said()
        finally:
            process.kill()


ROLES = {"timekeeper": timekeeper, "webhook": webhook, "extender": extender, "read-only": read_only}


def all_of(client: socket.socket) -> bytes:
    """What is received until the connection ends."""
    received = b""
    while part := client.recv(65_536):
        received += part
    return received


def descendants(of: int) -> list[int]:
    """The process IDs below one, and its own."""
    found = [of]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found
