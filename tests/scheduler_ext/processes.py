"""A real ``python -m scheduler_ext`` on a port of loopback."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from scheduler_ext.fit.refusal import UNKNOWN_NODE
from tests.support.tracing import environment
from tests.support.waiting import pause_s

ROOT = Path(__file__).parents[2]
SMALL = {
    "metadata": {"name": "small", "namespace": "dry-run", "uid": "dry-run"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"bursar.dev/gpu-percent": "1"}}}]},
}


class Process:
    """One role process after another on the same port, with the same flags; what they say is in ``log``.
    ``through``: the module that runs it, in place of Python itself. ``traced``: it is ended in order, so that
    coverage has its data. ``prefix``: comes before the command."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        through: Sequence[str] = (),
        traced: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        self._traced, self._prefix = traced, prefix
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "extender.log"
        self._module = *through, "scheduler_ext"
        self._flags = [f"--listen=127.0.0.1:{self.port}", *flags]
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is not waited for."""
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", *self._module, *self._flags],
                cwd=ROOT,
                stderr=log,
                env=environment(self._traced),
                start_new_session=True,  # so that master and worker can be killed together
            )

    def ready(self, within_s: float = LONGEST_S) -> None:
        """Wait until its books are complete."""
        begun = time.monotonic()
        while not self.answers("/readyz"):
            assert self._running is not None
            assert self._running.poll() is None, self.said()
            assert time.monotonic() < begun + within_s, self.said()
            time.sleep(pause_s(begun))

    def start_ready(self) -> None:
        """Start it, and wait until its books are complete."""
        self.start()
        self.ready()

    def answers(self, path: str) -> bool:
        """Whether a GET is answered with 200."""
        try:
            return self.get(path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET."""
        return self.call("GET", path)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Status and text of a call."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """The value of the sample with this name and these labels."""
        lines = self.get("/metrics")[1].splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def dry_run(self, *nodes: str) -> dict[str, str]:
        """Why each of these nodes takes no pod with a hundredth of a card; "": it takes one."""
        answer = json.loads(self.call("POST", "/dryrun", {"Pod": SMALL, "NodeNames": list(nodes)})[1])
        assert not answer["Error"], answer
        refused: dict[str, str] = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
        return dict.fromkeys(answer["NodeNames"], "") | refused

    def known(self, *nodes: str) -> set[str]:
        """Those of these nodes that the extender knows."""
        return {node for node, why in self.dry_run(*nodes).items() if why != UNKNOWN_NODE.sentence}

    def pids(self) -> list[int]:
        """Its master and its worker."""
        assert self._running is not None
        pid = self._running.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def descendants(self) -> list[int]:
        """The same, and the worker's own children."""
        master, *workers = self.pids()
        files = (path for pid in workers for path in Path(f"/proc/{pid}/task").glob("*/children"))
        return [master, *workers, *(int(pid) for file in files for pid in file.read_text().split())]

    def said(self) -> str:
        """What it has written so far."""
        return self.log.read_text()

    def kill(self) -> None:
        """Kill it, as a node that loses power would."""
        if self._running is not None:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            self._running = None

    def end(self) -> int:
        """Ask it to end, and return its exit code."""
        assert self._running is not None
        self._running.terminate()
        code = self._running.wait(timeout=LONGEST_S)
        self._running = None
        return code
