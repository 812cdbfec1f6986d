"""How long the dashboard's pages take on a large cluster.

``python -m tests.bench.dashboard [--namespaces N] [--nodes N] [--pods N] [--rounds N]``: nodes of 8 cards,
every pod on a card of its own; a month of charges, measured use by the hour, waiting and held pods,
decisions. A fresh SQLite file, one worker, without a network: what the server itself needs for a page. The
first load of each page is not among the rounds; it has a column of its own.
"""

import gc
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from werkzeug.test import Client

from tests.bench.command import TO_STDOUT, arguments, figures, timekeeper, write
from tests.timekeeper.books import Run, days, posting_row, session_row
from tests.timekeeper.dashboards import ADMIN, READER, Dashboards, log_in, on_node, waits
from tests.timekeeper.worlds import DAY, HOUR, T0
from timekeeper.store.engine.schema import DECISIONS, FIGURES, HEARTBEATS, HELD_PODS, POSTINGS, SESSIONS

Json = dict[str, Any]

CARDS = 8
PAGES = (
    "/",
    "/?sort=namespace&page=7",
    "/namespaces/team-a",
    "/groups",
    "/groups/g7",
    "/map",
    "/map?node=gpu-00001",
    "/waiting",
    "/waste",
    "/waste?group=namespace%2Cowner&span=month",
    "/costs",
    "/decisions",
    "/decisions?namespace=team-a&kind=waiting",
    "/pods/team-a/pod-0",
)
OF_ONE = (
    "/namespaces/team-a",
    "/map?namespace=team-a",
    "/waiting?namespace=team-a",
    "/waste?namespace=team-a",
)
COLUMNS = ("cpu_first", "cpu_p50", "cpu_p95", "clock_first", "clock_p50", "clock_p95", "load", "bytes")
_AT_ONCE = 20_000


def fill(made: Dashboards, namespaces: int, nodes: int, pods: int) -> None:
    """Write the cluster: budgets in groups of twenty, running pods, those of the month, and the map."""
    names = ["team-a", *(f"team-{at:04}" for at in range(1, namespaces))]
    made.books.entries(
        *((name, f"gpuHours: 5000\nperiod: month\ngroup: g{at // 20}", 0) for at, name in enumerate(names)),
        *((f"_group.g{at}", "gpuHours: 90000\nperiod: month", 0) for at in range((namespaces + 19) // 20)),
    )
    running = [_running(at, names, nodes) for at in range(pods)]
    ended = [_ended(at, names, nodes) for at in range(pods)]
    beats = [
        {"session_uid": each.uid, "boot": "b", "sequence": 1, "beat_ms": T0, "received_ms": T0}
        for each in running
    ]
    posted = [posting_row(run, number, *each) for run in ended for number, each in enumerate(run.posted)]
    _insert(made, SESSIONS, [session_row(each) for each in (*running, *ended)])
    _insert(made, HEARTBEATS, beats)
    _insert(made, POSTINGS, posted)
    used = (row for run in running for row in _used(run, T0 - (run.started_ms or T0)))
    _insert(made, FIGURES, [*used, *(row for run in ended for row in _used(run, 5 * HOUR))])
    _insert(made, DECISIONS, [_decision(at, names) for at in range(2 * pods)])
    _insert(made, HELD_PODS, [_held(at, names) for at in range(pods // 20)])
    on: dict[str, list[Run]] = {}
    for run in running:
        on.setdefault(run.node, []).append(run)
    for first in range(0, nodes, 40):
        rows = [
            on_node(f"gpu-{at:05}", on.get(f"gpu-{at:05}", []), CARDS)
            for at in range(first, min(first + 40, nodes))
        ]
        waiting = {"total": pods // 10, "pods": [waits(f"wait-{at}") for at in range(500)], "more": {}}
        body = {"version": 1, "nodes": rows, "gone": [], "waiting": None if first else waiting, "term": "a-1"}
        answer = made.books.post("/v1/cluster", body)
        if answer.status_code != 200:
            raise SystemExit(answer.text)
    with made.books.store.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")


def _running(at: int, names: list[str], nodes: int) -> Run:
    return Run(
        f"uid-{at}",
        names[at % len(names)],
        f"pod-{at}",
        owner=f"Job/job-{at % 977}",
        node=f"gpu-{at % nodes:05}",
        models="H100",
        started_ms=T0 - (1 + at % 40) * HOUR,
        heard_ms=T0,
        settled=False,
    )


def _ended(at: int, names: list[str], nodes: int) -> Run:
    start = T0 - (1 + at % 18) * DAY
    node, owner = f"gpu-{at % nodes:05}", f"Job/job-{at % 977}"
    posted = days(start, start + 5 * HOUR)
    return Run(
        f"old-{at}",
        names[at % len(names)],
        f"old-{at}",
        owner=owner,
        node=node,
        started_ms=start,
        posted=posted,
    )


def _used(run: Run, length_ms: int) -> list[Json]:
    """Measured use of each hour from the pod's start."""
    first_ms = (run.started_ms or 0) // HOUR * HOUR
    hours = range(first_ms, first_ms + length_ms, HOUR)
    figures = {"source": "node", "covered_ms": HOUR, "used_milli_ms": 300 * HOUR, "memory_mib_ms": 0}
    return [{"session_uid": run.uid, "hour_ms": at, **figures} for at in hours]


def _decision(at: int, names: list[str]) -> Json:
    return {
        "source": "extender",
        "kind": "waiting" if at % 3 else "placed",
        "reason": "TooLittleFree" if at % 3 else "Bound",
        "namespace": names[at % len(names)],
        "owner": f"Job/job-{at % 977}",
        "subject": f"pod-{at // 2}",
        "is_generated": False,
        "uid": f"uid-{at // 2}",
        "budget": "",
        "figures": '{"message": "not enough free GPUs"}',
        "count": 3,
        "first_ms": T0 - DAY + at,
        "last_ms": T0 - HOUR + at,
    }


def _held(at: int, names: list[str]) -> Json:
    row = {"uid": f"held-{at}", "namespace": names[at % len(names)], "name": f"held-{at}", "priority": 0}
    return {
        **row,
        "created_ms": T0 - HOUR,
        "rate_milli": 1000,
        "needs_budget": True,
        "length_ms": 0,
        "gang": "",
    }


def _insert(made: Dashboards, table: Any, rows: list[Json]) -> None:
    for at in range(0, len(rows), _AT_ONCE):
        with made.books.store.writing() as connection:
            connection.execute(insert(table), rows[at : at + _AT_ONCE])


def ask(client: Client, path: str, rounds: int) -> Json:
    """Times of a page in milliseconds, of the processor and on the clock; the machine's load; its size."""
    clock, processor, size = [], [], 0
    for _ in range(rounds + 1):
        began, began_cpu = time.perf_counter(), time.process_time()
        answer = client.get(path, base_url="https://bursar.test")
        processor.append(1000 * (time.process_time() - began_cpu))
        clock.append(1000 * (time.perf_counter() - began))
        if answer.status_code != 200:
            raise SystemExit(f"{path}: {answer.status_code} {answer.text}")
        size = len(answer.data)
    figures = {**_spread("cpu", processor), **_spread("clock", clock)}
    return {**figures, "load": round(os.getloadavg()[0], 1), "bytes": size}


def _spread(name: str, times: list[float]) -> Json:
    """The first time apart from the others."""
    first, *rest = times
    figures = {"first": first, "p50": statistics.median(rest), "p95": statistics.quantiles(rest, n=20)[-1]}
    return {f"{name}_{which}": round(each, 1) for which, each in figures.items()}


def main() -> None:
    """Prints the table and writes the JSON."""
    flags: dict[str, tuple[int | float | str, str]] = {
        "namespaces": (1_000, ""),
        "nodes": (5_000, ""),
        "pods": (40_000, ""),
        "rounds": (20, "of each page"),
        "database": ("", "an empty one, by its URL; else a new one on the volume, as installed"),
    }
    asked = arguments(__doc__, **flags)
    if not asked.database:
        with timekeeper() as (here, url):
            numbers = [f"--{name}={getattr(asked, name)}" for name in flags if name != "database"]
            return write(asked.json, figures(here, "dashboard", f"--database={url}", *numbers, TO_STDOUT))
    found: Json = {}
    made = Dashboards(Path(), database_url=asked.database)
    began = time.perf_counter()
    fill(made, asked.namespaces, asked.nodes, asked.pods)
    made.books.state()
    made.books.states = False
    show = partial(print, file=sys.stderr)
    show(f"made in {time.perf_counter() - began:.0f} s")
    gc.collect()
    gc.freeze()  # as the server does before its workers begin
    show(f"{'page, ms':<46}" + "".join(f"{each:>12}" for each in COLUMNS))
    for bearer, paths in ((ADMIN, PAGES), (READER, OF_ONE)):
        client = made.client()
        log_in(client, bearer)
        for path in paths:
            name = path if bearer == ADMIN else f"{path} (of one)"
            found[name] = ask(client, path, asked.rounds)
            show(f"{name:<46}" + "".join(f"{found[name][each]:>12}" for each in COLUMNS))
    made.close()
    write(asked.json, found)


if __name__ == "__main__":
    main()
