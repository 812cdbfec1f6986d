"""How many heartbeats a second one timekeeper takes, from real pods with real bound tokens, over verified
TLS.

``python -m tests.bench.heartbeats [--pods N] [--seconds S] [--rounds N] [--json FILE]``. Each pod waits for
its answer before it beats again: on a connection that it keeps, or with a new TLS connection for each; with
and without a card's figures. The rows are taken in turn, and the median of the rounds is told. The sender,
the API server and etcd share the machine's cores with the timekeeper; CPU is by the beat, of all the
timekeeper's processes and of the sender.
"""

import json
import os
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack, Tuning
from tests.bench.command import arguments, write
from tests.bench.contestants import Contestant, compiled
from tests.support.shape import Installed, installed, shape_of

Json = dict[str, Any]
WORKERS = 2
FIGURE = [{"uuid": "GPU-0", "utilisation": 37, "memory_mib": 8_000, "scope": "exclusive"}]


@dataclass(frozen=True, slots=True)
class Row:
    """One way of sending."""

    kept: bool
    figures: bool

    def name(self) -> str:
        """For people."""
        return f"{'kept alive' if self.kept else 'a new one each'}{', with figures' if self.figures else ''}"


ROWS = tuple(Row(kept, figures) for kept in (True, False) for figures in (False, True))


@dataclass(frozen=True, slots=True)
class Sender:
    """The program that beats (go/beats) and what it needs."""

    program: Path
    address: str
    ca: Path
    tokens: Path

    def run(self, row: Row, boot: str, seconds: float) -> Json:
        """Count, rate, p50, p99 and its own CPU time. Exits where a heartbeat is not taken."""
        flags = {
            "address": self.address,
            "ca": self.ca,
            "tokens": self.tokens,
            "boot": boot,
            "devices": json.dumps(FIGURE if row.figures else []),
            "seconds": seconds,
            "kept": str(row.kept).lower(),
        }
        command = [str(self.program), *(f"-{name}={value}" for name, value in flags.items())]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the heartbeats failed: {done.stderr.strip()}")
        found: Json = json.loads(done.stdout)
        return found


class InstalledStack(Stack):
    """Its timekeeper is as installed."""

    def __init__(self, cp: ControlPlane, here: Installed) -> None:
        ledger = f"--database=sqlite:///{here.folder}/ledger/bursar.db"
        super().__init__(cp, Tuning(timekeeper_workers=WORKERS, flags=(("timekeeper", (ledger,)),)))
        self._here = here

    def python(self, role: str) -> list[str]:
        """Within its shape."""
        return [*(self._here.prefix if role == "timekeeper" else ()), *super().python(role)]


def start_pods(stack: Stack, count: int) -> list[str]:
    """Pods that run, with a session in the ledger each; their tokens."""
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("bench", cards=16))
    limits = {"bursar.dev/gpu-percent": "1"}
    spec = {"containers": [{"name": "main", "image": "example/app:1", "resources": {"limits": limits}}]}
    pods = "/api/v1/namespaces/default/pods"
    for at in range(count):
        stack.cp.api.call("POST", pods, {"metadata": {"name": f"p{at}"}, "spec": spec})
    stack.wait(
        "the sessions", lambda: stack.log("timekeeper").count("event=session-opened") == count, within_s=120
    )
    listed = stack.cp.api.call("GET", pods)["items"]
    return [stack.token("default", "default", audience="bursar", pod=pod) for pod in listed]


def measured(timekeeper: Contestant, sender: Sender, rounds: int, seconds: float) -> list[Json]:
    """A line of the table for each row: medians of the rounds."""
    sender.run(ROWS[0], "warm", 1)
    taken: dict[Row, list[Json]] = {row: [] for row in ROWS}
    for number in range(rounds):
        for at, row in enumerate(ROWS):
            before = timekeeper.cpu_s()
            found = sender.run(row, f"round-{number}-{at}", seconds)
            us = 1e6 / found["count"]
            cpu = {"cpu_us": us * (timekeeper.cpu_s() - before), "sender_cpu_us": us * found["cpu_s"]}
            taken[row].append(found | cpu)
    names = ("per_s", "p50_ms", "p99_ms", "cpu_us", "sender_cpu_us")
    return [
        {"kept_alive": row.kept, "figures": row.figures, "connections": row.name()}
        | {name: round(statistics.median(each[name] for each in taken[row]), 2) for name in names}
        for row in ROWS
    ]


def show(rows: list[Json]) -> None:
    """Prints the table."""
    print(
        f"{'connections':<28}{'beats/s':>9}{'p50 ms':>8}{'p99 ms':>8}"
        f"{'CPU us a beat':>15}{'sender CPU us':>15}"
    )
    for row in rows:
        print(
            f"{row['connections']:<28}{row['per_s']:>9.0f}{row['p50_ms']:>8.1f}{row['p99_ms']:>8.1f}"
            f"{row['cpu_us']:>15.0f}{row['sender_cpu_us']:>15.0f}"
        )


def main() -> None:
    """Prints the table and writes the JSON."""
    given = arguments(__doc__, pods=(64, "pods that beat"), seconds=(5.0, "a row and round"), rounds=(3, ""))
    with (
        tempfile.TemporaryDirectory() as name,
        ControlPlane() as cp,
        tempfile.TemporaryDirectory() as installation,
        installed(shape_of("timekeeper"), Path(installation), cp.folder) as here,
        InstalledStack(cp, here) as stack,
    ):
        folder = Path(name)
        compiled(folder)
        tokens = folder / "tokens"
        tokens.write_text("\n".join(start_pods(stack, given.pods)))
        address = stack.timekeeper_url.removeprefix("https://")
        port = int(address.rpartition(":")[2])
        timekeeper = Contestant("timekeeper", port, stack.processes["timekeeper"].pid)
        sender = Sender(folder / "beats", address, stack.ca_file, tokens)
        rows = measured(timekeeper, sender, given.rounds, given.seconds)
        memory = timekeeper.pss_mib()
    load = [round(each, 2) for each in os.getloadavg()]
    show(rows)
    print(f"memory (PSS, MiB) of the timekeeper's processes: {memory}; load of the machine: {load}")
    conditions = {"pods": given.pods, "workers": WORKERS, "load": load, "pss_mib": memory}
    write(given.json, conditions | {"rows": rows})


if __name__ == "__main__":
    main()
