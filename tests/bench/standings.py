"""How soon a changed standing has reached every webhook worker of a large installation.

``python -m tests.bench.standings [--pollers N] [--namespaces M] [--rounds R] [--json FILE]``. N pollers
(go/polls) ask one timekeeper once a second, as webhook workers do, each on a TLS connection that it keeps. In
each round a change in the ConfigMap leaves one namespace of M without any budget; the clock runs from when
the API server has said so until the last poller has the new document. Pollers, API server and etcd share the
machine's cores with the timekeeper.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.stack import NAMESPACE, Stack, Tuning
from tests.bench.command import arguments, write
from tests.bench.contestants import Contestant, compiled

Json = dict[str, Any]
WORKERS = 2
WITHIN_S = 60.0
BUDGETS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
MERGE = "application/merge-patch+json"


class Arrivals:
    """What the pollers say: for each ETag, when how many had it, and how large the document was."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_ms: dict[str, list[int]] = {}
        self.bytes = 0

    def read(self, lines: Iterator[str]) -> None:
        """Follows the pollers until they end."""
        for line in lines:
            etag, at_ms, size = line.split()
            with self._changed:
                self._at_ms.setdefault(etag, []).append(int(at_ms))
                self.bytes = int(size)
                self._changed.notify_all()

    def all_have_one_since(self, at_ms: int, pollers: int) -> list[int]:
        """When each poller got the first document that all of them got after this moment; in order."""

        def arrived() -> list[int] | None:
            whole = [sorted(each) for each in self._at_ms.values() if len(each) == pollers]
            after = [each for each in whole if each[0] > at_ms]
            return min(after, default=None)

        with self._changed:
            if not self._changed.wait_for(lambda: arrived() is not None, timeout=WITHIN_S):
                raise SystemExit(f"after {WITHIN_S:.0f} s not every poller had the change")
            return arrived() or []


@contextmanager
def polling(program: Path, stack: Stack, pollers: int, folder: Path) -> Iterator[Arrivals]:
    """That many pollers at work."""
    token = folder / "token"
    token.write_text(stack.token(NAMESPACE, "bursar-webhook", audience="bursar"))
    address = stack.timekeeper_url.removeprefix("https://")
    flags = [f"-address={address}", f"-ca={stack.ca_file}", f"-token={token}", f"-pollers={pollers}"]
    process = subprocess.Popen(
        [str(program), *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    arrivals = Arrivals()
    reader = threading.Thread(target=arrivals.read, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        yield arrivals
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        reader.join(timeout=10)
    if process.returncode:
        raise SystemExit("the pollers failed; their own words stand above")


def budgets(namespaces: int) -> dict[str, str]:
    """A budget for each."""
    return {f"team-{at:05}": "gpuHours: 10\nperiod: month" for at in range(namespaces)}


def measured(stack: Stack, timekeeper: Contestant, arrivals: Arrivals, given: argparse.Namespace) -> Json:
    """The rounds, in seconds, and the timekeeper's processor time in a second without any change."""
    reached: list[list[int]] = []
    arrivals.all_have_one_since(0, given.pollers)
    for number in range(given.rounds):
        patch = {"data": {f"team-{number:05}": "gpuHours: 0\nperiod: month"}}
        stack.cp.api.call("PATCH", f"{BUDGETS}/bursar-budgets", patch, content_type=MERGE)
        began = int(time.time() * 1000)
        reached.append([at - began for at in arrivals.all_have_one_since(began, given.pollers)])
    before, since = timekeeper.cpu_s(), time.monotonic()
    threading.Event().wait(10)
    idle = (timekeeper.cpu_s() - before) / (time.monotonic() - since)
    return {
        "first_s": [round(each[0] / 1000, 2) for each in reached],
        "median_s": [round(statistics.median(each) / 1000, 2) for each in reached],
        "last_s": [round(each[-1] / 1000, 2) for each in reached],
        "document_bytes": arrivals.bytes,
        "cores_at_rest": round(idle, 2),
    }


def main() -> None:
    """Prints the figures and writes the JSON."""
    given = arguments(
        __doc__,
        pollers=(400, "webhook workers"),
        namespaces=(5_000, "with a budget each"),
        rounds=(5, "changes"),
    )
    with (
        tempfile.TemporaryDirectory() as name,
        ControlPlane() as cp,
        Stack(cp, Tuning(timekeeper_workers=WORKERS)) as stack,
    ):
        folder = Path(name)
        compiled(folder)
        config = {"metadata": {"name": "bursar-budgets"}, "data": budgets(given.namespaces)}
        cp.api.call("POST", BUDGETS, config)
        port = int(stack.timekeeper_url.rpartition(":")[2])
        timekeeper = Contestant("timekeeper", port, stack.processes["timekeeper"].pid)
        with polling(folder / "polls", stack, given.pollers, folder) as arrivals:
            found = measured(stack, timekeeper, arrivals, given)
    load = [round(each, 2) for each in os.getloadavg()]
    print(f"{given.pollers} pollers, {given.namespaces} namespaces, load of the machine {load}")
    for name, value in found.items():
        print(f"{name:<16}{value}")
    conditions = {"pollers": given.pollers, "namespaces": given.namespaces, "load": load}
    write(given.json, conditions | found)


if __name__ == "__main__":
    main()
