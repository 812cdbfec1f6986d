"""How cost grows with the cluster and the ledger: CPU of one operation at several sizes, and the exponent.

``python -m tests.bench.growth [--parts extender settler namespaces postings] [--nodes N ...] [--a-node K ...]
[--namespaces M ...] [--postings P ...] [--json FILE]``. Each size runs in a process of its own; figures are
medians of CPU milliseconds, so that other work on the machine counts little; of the settler's ticks the mean,
because some is due each second or each five only. The exponent is that of the power of the size that lies
closest to them (least squares on logarithms): 0 is flat, 1 is linear.

- ``extender``: filter over all nodes, prioritize, bind, an event of a pod and of a node, and the upkeep's
  tick; first by nodes with 8 pods each, then by pods on as many nodes as the middle one of ``--nodes``. No
  sockets: the verbs' functions, and an API server that answers at once.
- ``settler``: a tick in which one in forty nodes was heard, a pod's end, and a budget's change until all is
  written; by nodes with 8 pods each, on SQLite.
- ``namespaces``: the same and the whole standings document by namespaces, with 8,000 pods on 1,000 nodes.
- ``postings``: reports and the audit on PostgreSQL with 1,000 postings to a namespace; CPU of the server and
  of the caller. Plans of reports of one namespace that read the whole of a large table are named.
"""

import argparse
import gc
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from tests.bench.command import write
from tests.timekeeper.plans import Statements

Json = dict[str, Any]
Row = dict[str, float]  # operation -> CPU milliseconds

A_NODE = 8  # pods
CALLS = 25
TICKS = 40  # in which each node is heard once
CPU_S = time.process_time


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> float | None:
    """The b of the a * size^b that lies closest to the figures by their logarithms; None for less than two
    sizes, or where a figure is not above 0."""
    if len(set(sizes)) < 2 or min(figures) <= 0:
        return None
    xs, ys = [math.log(each) for each in sizes], [math.log(each) for each in figures]
    return statistics.linear_regression(xs, ys).slope


def table(by: str, rows: Mapping[int, Row]) -> str:
    """A line for each operation: its figure at each size, and the exponent."""
    sizes = sorted(rows)
    lines = [f"{by:<44}" + "".join(f"{size:>12,}" for size in sizes) + f"{'exponent':>10}"]
    for name in rows[sizes[0]]:
        figures = [rows[size][name] for size in sizes]
        found = exponent(sizes, figures)
        shown = "".join(f"{each:>12.3f}" if each < 10 else f"{each:>12,.0f}" for each in figures)
        lines.append(f"{name:<44}{shown}" + ("" if found is None else f"{found:>10.2f}"))
    return "\n".join(lines)


def median_ms(
    prepare: Callable[[], Callable[[], object]],
    calls: int = CALLS,
    average: Callable[[Sequence[float]], float] = statistics.median,
) -> float:
    """Of CPU; what it takes to get a call ready is not counted. The first three calls are not counted."""
    took = []
    for number in range(-3, calls):
        call = prepare()
        began = CPU_S()
        call()
        if number >= 0:
            took.append(1000 * (CPU_S() - began))
    return round(average(took), 4)


# The extender


def extender(nodes: int, a_node: int) -> Row:
    """Its operations with so many nodes, and so many pods on each."""
    from scheduler_ext.model.node import read_node
    from scheduler_ext.model.pod import read_any
    from tests.bench import extender as worlds
    from tests.bench.cost.operations import CARDS, ExtenderWorld

    with tempfile.TemporaryDirectory() as folder:
        world = ExtenderWorld(Path(folder), nodes, a_node)
    cache, upkeep = world.cache, world.extender._upkeep
    world.lead()
    gc.collect()
    gc.freeze()
    number = 0

    def verb(path: str) -> Callable[[], object]:
        nonlocal number
        number += 1
        world.book()
        shape = worlds.SIZES[number % len(worlds.SIZES)]
        asked = {"Pod": worlds.pod(f"p-{number}", shape), "NodeNames": world.names}
        if path == "/prioritize":
            fits = orjson.loads(world.call("/filter", orjson.dumps(asked)))
            asked |= {"NodeNames": fits["NodeNames"]}
        body = orjson.dumps(asked)
        return lambda: world.call(path, body)

    def bind() -> Callable[[], object]:
        nonlocal number
        number += 1
        name = f"w-{number}"
        waiting = worlds.pod(name, {"bursar.dev/gpu-percent": "10", "cpu": "1"})
        cache.pod_updated(read_any(waiting))
        fits = orjson.loads(world.call("/filter", orjson.dumps({"Pod": waiting, "NodeNames": world.names})))
        order = {"PodName": name, "PodNamespace": "team-a", "PodUID": f"uid-{name}"}
        body = orjson.dumps(order | {"Node": fits["NodeNames"][0]})

        def call() -> None:
            if orjson.loads(world.call("/bind", body))["Error"]:
                raise SystemExit("a bind failed")

        return call

    def pod_event() -> Callable[[], object]:
        nonlocal number
        number += 1
        raw = orjson.dumps(next(world.more))
        return lambda: cache.pod_updated(read_any(orjson.loads(raw)))

    def node_event() -> Callable[[], object]:
        nonlocal number
        number += 1
        raw = worlds.node(world.names[number % nodes], CARDS)
        raw["metadata"]["resourceVersion"] = str(number + 1)
        raw["metadata"]["labels"] = {"seen": str(number)}
        body = orjson.dumps(raw)
        return lambda: cache.node_updated(read_node(orjson.loads(body)))

    def tick() -> Callable[[], object]:
        world.book()

        def call() -> None:
            cache.expire()
            upkeep.closures.look(cache.snapshot.nodes)
            cache.uncertain()

        return call

    return {
        "filter": median_ms(partial(verb, "/filter")),
        "prioritize": median_ms(partial(verb, "/prioritize")),
        "bind": median_ms(bind),
        "event of a pod": median_ms(pod_event),
        "event of a node": median_ms(node_event),
        "tick": median_ms(tick),
    }


# The settler


def settler(nodes: int, namespaces: int) -> Row:
    """Its ticks with so many nodes, with 8 pods each, and so many namespaces with a budget each."""
    from tests.bench import live_pods
    from tests.bench.ledger import Run
    from timekeeper.accounts.standings import publish
    from timekeeper.settler.cluster.cluster_state import StreamAlive, WatchUpdate
    from timekeeper.settler.settler import TICK_MS
    from timekeeper.store.engine.engine import open_store
    from timekeeper.store.engine.upgrade import upgrade

    live_pods.PODS_A_NODE = A_NODE
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        url = f"sqlite:///{folder}/ledger.db"
        store = open_store(url)
        upgrade(store)
        store.close()
        run = Run(url, live_pods.Cluster(A_NODE * nodes, namespaces))
        for update in run.cluster.lists(run.now, pods=True):
            run.settler.apply(update)
        run.tick_ms()
        gc.collect()
        gc.freeze()
        number = 0

        def quiet() -> Callable[[], object]:
            nonlocal number
            number += 1
            run.now += TICK_MS
            for at in range(number % TICKS, nodes, TICKS):
                run.lease(at)
            run.settler.apply(WatchUpdate("pods", run.now, StreamAlive()))
            return run.tick_ms

        def changed(change: Callable[[], None]) -> Callable[[], object]:
            run.now += TICK_MS

            def call() -> None:
                change()
                run.tick_ms()

            return call

        def document() -> Callable[[], object]:
            ledger, history = run.settler.ledger, run.settler.ledger.history
            assert ledger.statement_cache is not None
            made, settings = ledger.statement_cache.statements, history.settings(run.now)
            classes = run.settler.cluster.classes
            return lambda: publish(settings, classes, made.default, made.namespaces, run.now, None)

        row = {
            "tick, one in 40 nodes heard": median_ms(quiet, TICKS, statistics.fmean),
            "a pod ends": median_ms(partial(changed, run.one_pod)),
            "a budget changes": median_ms(partial(changed, run.one_budget), 7),
            "the standings document, all of it": median_ms(document, 7),
        }
        run.store.close()
    return row


# The ledger on PostgreSQL

A_NAMESPACE, A_SESSION = 1_000, 10  # postings
AT_ONCE = 1_000_000
HOUR, DAY = 3_600_000, 86_400_000
BEGIN = 1_793_491_200_000  # 2026-11-01T00:00:00Z
LARGE = ("postings", "sessions", "days")
OF_ONE = "one namespace: "

# Session s: ten hours without a gap within one day of November, and a posting for each.
_NUMBERS = """(SELECT n, {begin} + n % 29 * {day}::bigint + n % 14 * {hour}::bigint AS at
 FROM generate_series({first}::bigint, {last}) AS n) AS numbers"""
_ROWS = (
    """INSERT INTO sessions (uid, namespace, name, owner, node, models, devices, rate_milli,
 admitted_in_budget, bound_ms, opened_ms, started_ms, ended_ms, grace_ms,
 settled_ms, others_ended, labels, requested_milli, requested_mib, was_unseen, kind,
 consumers, users)
SELECT 'uid-' || n, 't' || n % {namespaces}, 'pod-' || n, 'Job/job-' || n % {owners}, 'node-' || n % 5000,
 'A100', '', 1000, true, at, at, at, at + {length}, 0, at + {length}, false, '{{}}', 1000, 0, false,
 'pod', '', ''
FROM """
    + _NUMBERS,
    """INSERT INTO postings (session_uid, sequence, namespace, from_ms, to_ms, rate_milli, amount, kind,
 reason, created_ms)
SELECT 'uid-' || n, k, 't' || n % {namespaces}, at + k * {hour}, at + (k + 1) * {hour}, 1000,
 1000 * {hour}::bigint, 'settled', '', at + {length}
FROM """
    + _NUMBERS
    + ", generate_series(0, {a_session} - 1) AS k",
)


def fill(store: Any, count: int) -> None:
    """So many postings, of a tenth as many settled sessions. Indexes of postings are built afterwards."""
    from sqlalchemy import text

    from timekeeper.store.engine.schema import POSTINGS

    numbers = {"namespaces": count // A_NAMESPACE, "owners": count // 100, "length": A_SESSION * HOUR}
    fixed = {"begin": BEGIN, "day": DAY, "hour": HOUR, "a_session": A_SESSION}
    with store.writing() as connection:
        for index in POSTINGS.indexes:
            index.drop(connection)
    step = AT_ONCE // A_SESSION
    for first in range(0, count // A_SESSION, step):
        last = min(first + step, count // A_SESSION) - 1
        for rows in _ROWS:
            with store.writing() as connection:
                filled = rows.format(first=first, last=last, **numbers, **fixed)
                connection.execute(text(filled.replace("::", "\\:\\:")))
    for index in POSTINGS.indexes:
        with store.writing() as connection:
            index.create(connection)
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")  # as autovacuum does after a while


REPORTS = {
    "all namespaces, the month": "/v1/usage?{month}",
    "all namespaces by day": "/v1/usage?{month}&by=day",
    "by owner, first page of 100": "/v1/usage?{month}&group=owner&limit=100",
    "by pod, first page of 1000": "/v1/usage?{month}&group=pod&limit=1000",
    "all balances": "/v1/budgets",
    OF_ONE + "the month": "/v1/usage?{month}&namespace=t7",
    OF_ONE + "by pod": "/v1/usage?{month}&namespace=t7&group=pod",
    OF_ONE + "by owner and day": "/v1/usage?{month}&namespace=t7&group=owner&by=day",
    OF_ONE + "with use": "/v1/usage?{month}&namespace=t7&use=true",
    OF_ONE + "balance": "/v1/budgets/t7",
    OF_ONE + "sessions": "/v1/sessions?namespace=t7",
    OF_ONE + "why a pod": "/v1/explain/t7/pod-7",
}


def postings(count: int) -> Row:
    """Reports and the audit of a ledger with so many postings."""
    from tests import postgresql
    from tests.timekeeper.books import Books
    from timekeeper.operations.audit.audit import audit

    if count * 700 > free_memory():  # bytes of a posting with its indexes and its part of a session
        postgresql._fast_folder = lambda: None
    with postgresql.fresh_postgresql() as url:
        books = Books(url)
        books.clock.at_ms = BEGIN + 30 * DAY
        began = time.monotonic()
        fill(books.store, count)
        print(f"{count:,} postings made in {time.monotonic() - began:.0f} s", flush=True)
        row: Row = {}
        for name, path in REPORTS.items():
            asked = path.format(month=f"from={BEGIN}&to={BEGIN + 30 * DAY}")
            statements = Statements(books.store.engine)
            row[name] = with_server_ms(partial(answered, books, asked), 10 if name.startswith(OF_ONE) else 4)
            statements.end()
            if name.startswith(OF_ONE):
                for plan in statements.scans(LARGE):
                    print(f"reads a whole table: {name}: {plan}", flush=True)
        findings: list[object] = []
        with books.store.reading() as connection:
            row["audit"] = with_server_ms(lambda: audit(connection, books.clock.at_ms, findings.append), 1)
        if findings:
            raise SystemExit(f"the audit found {len(findings)}: {findings[0]}")
        books.close()
    postgresql.end()
    return row


def answered(books: Any, path: str) -> None:
    """The whole answer is read."""
    answer = books.get(path)
    if answer.status_code != 200:
        raise SystemExit(f"{path}: {answer.status_code} {answer.get_data(as_text=True)}")
    for _ in answer.response:
        pass
    answer.close()


def free_memory() -> int:
    """Bytes of memory that a database in memory may take."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024 // 4


def with_server_ms(call: Callable[[], object], calls: int) -> float:
    """The median CPU of this process and of PostgreSQL's together; of several calls the first is not
    counted."""
    from tests.postgresql import server

    took = []
    for _ in range(calls):
        began = CPU_S() + server().cpu_s()
        call()
        took.append(1000 * (CPU_S() + server().cpu_s() - began))
    return round(statistics.median(took[1:] or took), 3)


PARTS = ("extender", "settler", "namespaces", "postings")


def measured(part: Callable[[int], Row], sizes: Iterable[int]) -> dict[int, Row]:
    """Each size in a process of its own."""
    rows = {}
    for size in sizes:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            rows[size] = pool.submit(part, size).result()
        print(f"  {size:,}: {rows[size]}", flush=True)
    return rows


def tables(given: argparse.Namespace) -> Iterable[tuple[str, dict[int, Row]]]:
    """The parts that were asked for, each with what its sizes count."""
    middle = sorted(given.nodes)[len(given.nodes) // 2]
    if "extender" in given.parts:
        yield f"extender: nodes, {A_NODE} pods each", measured(partial(extender, a_node=A_NODE), given.nodes)
        rows = measured(partial(extender, middle), given.a_node)
        yield f"extender: pods on {middle:,} nodes", {middle * each: row for each, row in rows.items()}
    if "settler" in given.parts:
        yield "settler: nodes, 1,000 namespaces", measured(partial(settler, namespaces=1_000), given.nodes)
    if "namespaces" in given.parts:
        yield "settler: namespaces, 1,000 nodes", measured(partial(settler, 1_000), given.namespaces)
    if "postings" in given.parts:
        yield "ledger on PostgreSQL: postings", measured(postings, given.postings)


def main() -> None:
    """Prints the tables and writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    numbers: dict[str, tuple[int, ...]] = {
        "nodes": (500, 1_000, 2_000),
        "a-node": (1, 4, 16),
        "namespaces": (1_000, 2_000, 4_000),
        "postings": (100_000, 300_000),
    }
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default, help="(%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = {}
    for by, rows in tables(given):
        print(f"\n{table(by, rows)}\n", flush=True)
        found[by] = rows
    write(given.json, {"cpu_ms": found, "load": os.getloadavg()})


if __name__ == "__main__":
    main()
