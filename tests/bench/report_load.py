"""What a report with many empty hours costs, and what another tenant's reports do to a namespace's own.

``python -m tests.bench.report_load [--base FOLDER] [--postings N] [--json FILE]``: real timekeepers over TLS
with two workers, on SQLite and PostgreSQL, 500 namespaces. ``--base``: the sources of another commit, which
are measured in the same run. The load: six connections of one namespace ask for its 13 months by hour, again
and again; who is refused asks again after a second, though `Retry-After` asks for two.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

from tests.bench.command import write
from tests.bench.reports import BEGIN, DAY, DAYS, fill
from tests.postgresql import end, fresh_postgresql
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.books import Books, Run
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import Process, children, prepared, send
from tests.timekeeper.worlds import HOUR, lease, token, user_status
from timekeeper.runtime.clock import now_ms

Json = dict[str, Any]

LOADERS, RUNS = 6, 20
MONTHS_MS = 395 * DAY
SPARSE = f"/v1/usage?namespace=t7&by=hour&from={BEGIN + DAYS * DAY - MONTHS_MS}&to={BEGIN + DAYS * DAY}"
FULL = SPARSE.replace("t7", "full")
VICTIM = f"/v1/usage?namespace=t9&group=pod&from={BEGIN}&to={BEGIN + DAYS * DAY}"
USERS = {name: token(f"system:serviceaccount:{name}:reader") for name in ("t7", "t9", "full")}


def ledger(url: str, postings: int) -> None:
    """A month of 500 namespaces, and one that was charged in each hour of 13 months."""
    books = Books(url)
    fill(books, postings, 100)
    hours = range(BEGIN + DAYS * DAY - MONTHS_MS, BEGIN + DAYS * DAY, HOUR)
    books.write(Run("full", "full", started_ms=hours[0], posted=tuple((at, at + HOUR, 1) for at in hours)))
    books.close()


def answers() -> FakeApiServer:
    """An API server that knows the namespaces' accounts."""
    api = FakeApiServer()
    for name, text in USERS.items():
        user = f"system:serviceaccount:{name}:reader"
        api.tokens[text] = user_status(user)
        api.allowed.add((user, "get", "usage", name))
    api.put("leases", lease(now_ms()))
    return api


def cpu_s(process: Process) -> float:
    """CPU time of the workers so far."""
    assert process.running is not None
    pids = [pid for each in children(process.running.pid).get("workers", []) for pid in (each, *_below(each))]
    ticks = 0
    for pid in pids:
        after = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        ticks += int(after[11]) + int(after[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _below(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def timed(process: Process, path: str, bearer: str) -> tuple[int, float]:
    """Status and milliseconds of one request on a new connection."""
    began = time.perf_counter()
    status = process.call("GET", path, bearer)[0]
    return status, 1000 * (time.perf_counter() - began)


@contextmanager
def load(process: Process, path: str, bearer: str) -> Iterator[Counter[int]]:
    """Six connections that ask without end; the counts of their answers by status."""
    over, seen = Event(), Counter[int]()

    def loop() -> None:
        connection = process.connection()
        connection.timeout = 120
        while not over.is_set():
            try:
                status = send(connection, "GET", path, bearer)[0]
                seen[status] += 1
                over.wait(1 if status == 503 else 0)
            except OSError:
                connection.close()
        connection.close()

    threads = [Thread(target=loop) for _ in range(LOADERS)]
    for each in threads:
        each.start()
    time.sleep(2)
    try:
        yield seen
    finally:
        over.set()
        for each in threads:
            each.join(60)


def measure(process: Process) -> Json:
    """The figures of one timekeeper."""
    process.start_ready()
    before = cpu_s(process)
    status, sparse_ms = timed(process, SPARSE, USERS["t7"])
    spent = round(cpu_s(process) - before, 2)
    found: Json = {"sparse": {"status": status, "cpu_s": spent, "ms": round(sparse_ms)}}
    before = cpu_s(process)
    status, full_ms = timed(process, FULL, USERS["full"])
    found["full"] = {"status": status, "cpu_s": round(cpu_s(process) - before, 2), "ms": round(full_ms)}
    alone = [timed(process, VICTIM, USERS["t9"]) for _ in range(RUNS)]
    found["alone_ms"] = round(median(ms for _, ms in alone), 1)
    for name, path in (("sparse", SPARSE), ("full", FULL)):
        bearer = USERS["t7" if name == "sparse" else "full"]
        with load(process, path, bearer) as seen:
            beside = [timed(process, VICTIM, USERS["t9"]) for _ in range(RUNS)]
        served = [ms for status, ms in beside if status == 200]
        found[f"beside {name}"] = {
            "served": len(served),
            "refused": RUNS - len(served),
            "ms": round(median(served), 1) if served else None,
            "times": round(median(served) / found["alone_ms"], 2) if served else None,
            "load": dict(seen),
        }
    process.kill()
    return found


def measured(place: Path, api_server: str, url: str, path: str) -> Json:
    """The figures of the timekeeper whose sources are at ``path``."""
    with prepared(place, kubeconfig(place, api_server), "--workers=2") as process:
        process.url, process.path = url, path
        return measure(process)


def main() -> None:
    """Prints the figures and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, help="the sources of another commit")
    parser.add_argument("--postings", type=int, default=1_000_000, help="in a month (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    sources = {"base": str(arguments.base)} if arguments.base else {}
    found: Json = {}
    with tempfile.TemporaryDirectory() as folder, fresh_postgresql() as postgresql:
        for kind, url in (("sqlite", f"sqlite:///{folder}/ledger.db"), ("postgresql", postgresql)):
            ledger(url, arguments.postings)
            for name, path in {**sources, "this": os.getcwd()}.items():
                place = Path(folder) / f"{kind}-{name}"
                place.mkdir()
                with serving(answers()) as served:
                    found[f"{kind}, {name}"] = measured(place, served, url, path)
                print(f"{kind}, {name}: {found[f'{kind}, {name}']}", flush=True)
    end()
    write(arguments.json, found)


if __name__ == "__main__":
    main()
