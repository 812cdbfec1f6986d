"""Two extenders before a real API server, and what asks them: two kube-schedulers that elect their leader, or
one behind a stand-in for a Service."""

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import yaml

from deploy.local.build import binaries
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from deploy.local.scheduler import extender, scheduler_configuration
from tests.scheduler_ext import readback
from tests.scheduler_ext.processes import ROOT
from tests.support.tracing import environment
from tests.support.waiting import eventually
from tests.worlds import Json

HOME = "bursar-system"
PROBE_S = 5  # of the chart's probes too: one that is stopped is left out
PROFILE = "bursar-scheduler"
PODS = "/api/v1/namespaces/default/pods"


OWN_POD = {
    "schedulerName": "nobody",
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "extender",
            "image": "x",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}


class Group:
    """One process with all that it started. ``log``: what it has written."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log, self._command = log, command
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again if it has ended."""
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=environment(traced=False),
                start_new_session=True,
            )

    def signal(self, which: signal.Signals) -> None:
        """To all of it: SIGKILL, SIGSTOP, SIGCONT."""
        assert self._running is not None
        os.killpg(self._running.pid, which)

    def end(self) -> None:
        """Kill it, where it has not ended."""
        if self._running is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            self._running = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._running is not None and self._running.poll() is None

    @property
    def pid(self) -> int:
        """Its process ID; 0 where it has ended."""
        return self._running.pid if self._running is not None else 0


class Replica:
    """An extender process with a pod object of its own, and perhaps a kube-scheduler beside it."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        name: str,
        flags: list[str],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name, self.port, self._tls = name, free_port(), tls
        flags = [f"--listen=127.0.0.1:{self.port}", f"--identity={name}", f"--pod={HOME}/{name}", *flags]
        command = (sys.executable, "-m", "scheduler_ext", *flags)
        self.extender = Group(folder / f"{name}.log", *command)
        self.scheduler: Group | None = None
        body = {"metadata": {"name": name}, "spec": OWN_POD}
        plane.api.call("POST", f"/api/v1/namespaces/{HOME}/pods", body)

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET; 0 where nothing answers, as of one that is stopped."""
        connection: http.client.HTTPConnection
        if self._tls:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=PROBE_S, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PROBE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def leads(self) -> bool:
        """Whether it says so."""
        return "bursar_extender_leads 1.0" in self.get("/metrics")[1]

    def each(self) -> list[Group]:
        """Its processes."""
        return [self.extender] + ([self.scheduler] if self.scheduler else [])

    def signal(self, which: signal.Signals) -> None:
        """To all of it."""
        for each in self.each():
            if each.alive:
                each.signal(which)

    def start(self) -> None:
        """Start what does not run."""
        for each in self.each():
            if not each.alive:
                each.start()

    def end(self) -> None:
        """Kill all of it."""
        for each in self.each():
            each.end()


def beside_a_scheduler(replica: Replica, plane: ControlPlane, folder: Path) -> None:
    """A kube-scheduler on a host of the replica's name, which elects with the others."""
    told = scheduler_configuration(
        str(plane.folder / "scheduler.kubeconfig"), (PROFILE,), [extender(f"http://127.0.0.1:{replica.port}")]
    )
    told["leaderElection"] = {
        "leaderElect": True,
        "resourceName": "bursar-scheduler",
        "resourceNamespace": HOME,
        "resourceLock": "leases",
        "leaseDuration": "3s",
        "renewDeadline": "2s",
        "retryPeriod": "500ms",
    }
    file = folder / f"{replica.name}.yaml"
    file.write_text(yaml.safe_dump(told))
    binary = binaries(print)["kube-scheduler"]
    run = f"hostname {replica.name} && exec {binary} --config={file} --secure-port={free_port()}"
    words = ("unshare", "--map-root-user", "--uts", "sh", "-c", run)
    replica.scheduler = Group(folder / f"{replica.name}-scheduler.log", *words)


class Service:
    """Passes connections on to the replica that was ready when it last looked, as kube-proxy does: those that
    are open stay where they are."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas, self._ready, self._stop = replicas, 0, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        for work in (self._look, self._accept):
            self._begin(work)

    def end(self) -> None:
        """Take no more connections, and cut those that there are."""
        self._stop.set()
        _cut(self._listener)
        for each in tuple(self._open):
            _cut(each)
        for thread in tuple(self._threads):
            thread.join()
        self._listener.close()

    def _begin(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        def run() -> None:
            try:
                work(*arguments)
            finally:
                self._threads.discard(thread)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            ready = [each.port for each in self._replicas if each.get("/readyz")[0] == 200]
            self._ready = ready[0] if ready else 0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                if self._stop.is_set():
                    return
                raise
            self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._ready), timeout=LONGEST_S)
        except OSError:
            _cut(client)
            client.close()
            return
        server.settimeout(None)
        self._open |= {client, server}
        self._begin(self._both_ways, client, server)

    def _both_ways(self, client: socket.socket, server: socket.socket) -> None:
        """Until either end goes. kube-scheduler opens a connection for each bind beyond the second."""
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()
        for each in (client, server):
            self._open.discard(each)
            each.close()


def _copy(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):  # either end may go
        while data := one.recv(65_536):
            other.sendall(data)
    for each in (one, other):
        _cut(each)


def _cut(each: socket.socket) -> None:
    with suppress(OSError):  # it may have ended by itself
        each.shutdown(socket.SHUT_RDWR)


class World:
    """Nodes and pods of a cluster, as its objects tell."""

    def __init__(self, plane: ControlPlane) -> None:
        self.api = plane.api
        self._names = 0

    def nodes(self, *names: str, cards: int) -> None:
        """Nodes of so many cards."""
        for name in names:
            self.api.call("POST", "/api/v1/nodes", kwok_node(name, cards=cards, memory_mib=16_000))

    def pods(self, count: int, percent: int) -> None:
        """So many pods at once."""
        limits = {"bursar.dev/gpu-percent": str(percent)}
        container = {"name": "main", "image": "x", "resources": {"limits": limits}}
        spec = {"schedulerName": PROFILE, "restartPolicy": "Never", "containers": [container]}
        begun, self._names = self._names, self._names + count

        def make(at: int) -> None:
            self.api.call("POST", PODS, {"metadata": {"name": f"p{at}"}, "spec": spec})

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(make, range(begun, begun + count)))

    def bound(self) -> list[Json]:
        """The pods that are; no card may be overcommitted, ever."""
        pods: list[Json] = self.api.call("GET", PODS)["items"]
        held = [each for each in pods if readback.holds(each)]
        total = readback.taken(held)
        assert not readback.overcommitted(total, dict.fromkeys(total, 16_000))
        assert all(readback.slices(each) for each in held)
        return held

    def clear(self) -> None:
        """No pods, no nodes."""
        self.api.call("DELETE", PODS)
        eventually(lambda: not self.api.call("GET", PODS)["items"])
        self.api.call("DELETE", "/api/v1/nodes")


def said(log: Path) -> list[str]:
    """The lines of a log that tell of leading."""
    words = ("event=leads", "event=follows", "event=fences")
    return [line for line in log.read_text().splitlines() if any(word in line for word in words)]
