"""The webhooks that are compared, as processes: ours, and the minimal one in Go; and what they cost."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.golang import Workshop, find_go, install_go
from deploy.local.ports import free_port
from deploy.local.tools import cache_folder
from tests.support.processor_time import family, running
from tests.support.shape import installed, shape_of
from tests.support.tls import Tls
from tests.webhook.servers import Webhook

Json = dict[str, Any]

_GO = Path(__file__).parent / "go"
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Contestant:
    """A webhook that serves: where, and its first process."""

    name: str
    port: int
    pid: int

    def cpu_s(self) -> float:
        """The CPU time that it and its children have taken."""
        return sum(map(_cpu_s, family(self.pid, running())))

    def pss_mib(self) -> list[float]:
        """The proportional set size of each of its processes, the first one's first."""
        return [round(pss_kib(each) / 1024, 1) for each in family(self.pid, running())]


@dataclass(frozen=True, slots=True)
class Load:
    """The program that posts; see go/load."""

    program: Path

    def run(
        self,
        url: str,
        ca: Path,
        body: Path,
        connections: int,
        count: int,
        token: str = "",
        expect: int = 200,
        warm_up: int = 0,
    ) -> Json:
        """Posts and returns count, per_s, p50_ms and p99_ms. Exits where an answer is not the expected
        one."""
        flags = {
            "url": url,
            "ca": ca,
            "body": body,
            "connections": connections,
            "count": count,
            "token": token,
            "expect": expect,
            "warm-up": warm_up,
        }
        command = [str(self.program), *(f"-{name}={value}" for name, value in flags.items())]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the load failed: {done.stderr.strip()}")
        found: Json = json.loads(done.stdout)
        return found


def compiled(folder: Path) -> tuple[Load, Path]:
    """Builds the Go programs into the folder: the load, and the minimal webhook's binary."""
    workshop = Workshop(cache_folder() / "go")
    workshop.scratch.mkdir(parents=True, exist_ok=True)
    if find_go(workshop, os.environ) is None:
        install_go(workshop, os.environ, lambda _output, _seconds: None)
    go = find_go(workshop, os.environ)
    command = [str(go), "build", "-trimpath", "-o", f"{folder}/", "./..."]
    done = subprocess.run(
        command, cwd=_GO, env=workshop.environment(os.environ), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"the Go programs cannot be built: {done.stderr.strip()}")
    return Load(folder / "load"), folder / "webhook"


@contextmanager
def minimal_go(program: Path, tls: Tls, folder: Path, name: str = "Go") -> Iterator[Contestant]:
    """The minimal webhook, serving; ``name`` tells several apart."""
    port = free_port()
    flags = ["-listen", f"127.0.0.1:{port}", "-cert", tls.file("tls.crt"), "-key", tls.file("tls.key")]
    with (folder / "go.log").open("wb") as log:
        process = subprocess.Popen([str(program), *flags], stderr=log)
    try:
        yield Contestant(name, port, process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def ours(tls: Tls, timekeeper_url: str, folder: Path) -> Iterator[Contestant]:
    """Bursar's webhook as installed, serving with its default number of workers."""
    with (
        installed(shape_of("webhook"), folder, tls.folder) as here,
        Webhook(folder, tls, timekeeper_url, workers=WORKERS, prefix=here.prefix) as webhook,
    ):
        yield Contestant("Bursar", webhook.port, webhook.process.pid)


def _cpu_s(pid: int) -> float:
    """By the scheduler's own count, in nanoseconds: ticks are too coarse for a second's work."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def pss_kib(pid: int) -> int:
    """Its proportional set size."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
