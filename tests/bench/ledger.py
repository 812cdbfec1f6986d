"""How much of a cluster one settler carries: the watch applied, ticks, standings after a change, the start,
memory, and what it writes.

``python -m tests.bench.ledger [--pods N ...] [--namespaces M] [--postings K] [--database URL]
[--json FILE]``. The API server is left out: its JSON is made here, decoded and read as the watch does, in the
settler's own thread. Each size runs in a process of its own, and its start once more in another. A database
that is named must be empty, and takes one size.

Times are of the settler's own processor, so that other work on the machine does not count; waiting for the
disk or for PostgreSQL is not in them.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import event, insert, text

from tests.bench.command import figures, timekeeper, write
from tests.bench.live_pods import Cluster
from tests.timekeeper.clocks import iso
from tests.timekeeper.rows import SESSION, beat
from tests.timekeeper.worlds import READ, T0, lease
from timekeeper.edge.reflector import ObjectChanged, WatchProgress
from timekeeper.settler.cluster.cluster_state import WatchUpdate
from timekeeper.settler.settler import TICK_MS, Settler
from timekeeper.store import heartbeats as beats
from timekeeper.store.engine.engine import Store, open_store
from timekeeper.store.engine.schema import POSTINGS, SESSIONS
from timekeeper.store.engine.upgrade import upgrade

Json = dict[str, Any]

SIZES = (1_000, 10_000, 100_000)
NOW = T0 + 3_600_000
HOUR, DAY = 3_600_000, 86_400_000


class Meter:
    """Rows sent to the database and bytes written: by this process to SQLite's files, by PostgreSQL to its
    log."""

    def __init__(self, store: Store) -> None:
        self._store, self.rows = store, 0
        event.listen(store.engine, "before_cursor_execute", self._count)

    def _count(self, _c: Any, _k: Any, statement: str, given: Any, _x: Any, many: bool) -> None:
        if statement.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE"):
            self.rows += len(given) if many else 1

    def bytes(self) -> int:
        """All so far."""
        if self._store.engine.dialect.name == "sqlite":
            fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
            return int(fields["wchar"])
        with self._store.reading() as connection:
            lsn = connection.execute(text("SELECT pg_current_wal_lsn() - '0/0'")).scalar_one()
        return int(lsn)


class Run:
    """A settler, its cluster, and a clock that goes on only in between."""

    def __init__(self, url: str, cluster: Cluster) -> None:
        self.now, self.cluster = NOW, cluster
        self.store = open_store(url)
        self.meter = Meter(self.store)
        self.settler = Settler(self.store, lambda: self.now, lambda _: None)

    def tick_ms(self) -> float:
        """How long a tick takes."""
        began = time.process_time()
        if not self.settler.tick():
            raise SystemExit("the database is away")
        return 1000 * (time.process_time() - began)

    def apply(self, running: bool) -> Json:
        """Every pod once as an event of the watch; ticks as the wheel has them: at most half of the time."""
        began, longest, rows, size = time.process_time(), 0.0, self.meter.rows, self.meter.bytes()
        ticked = began
        for at in range(self.cluster.pods):
            self.settler.apply(
                WatchUpdate("pods", self.now, ObjectChanged(self.cluster.read(at, running), deleted=False))
            )
            if at % 64 == 0 and time.process_time() - ticked > max(TICK_MS, longest) / 1000:
                self.now += TICK_MS
                longest = max(longest, self.tick_ms())
                ticked = time.process_time()
        self.now += TICK_MS
        longest = max(longest, self.tick_ms())
        pods = self.cluster.pods
        return {
            "events_per_s": round(pods / (time.process_time() - began)),
            "longest_tick_ms": round(longest),
            "rows": round((self.meter.rows - rows) / pods, 2),
            "bytes": round((self.meter.bytes() - size) / pods),
        }

    def lease(self, at: int) -> None:
        """A node's kubelet is heard."""
        item = READ["leases"](lease(self.now - 1, f"node-{at:05d}"))
        if item is not None:
            self.settler.apply(WatchUpdate("leases", self.now, ObjectChanged(item, deleted=False)))

    def after(self, change: Callable[[], None], times: int = 5) -> float:
        """The median of a tick after such a change, in milliseconds, the taking in of the change included."""
        took = []
        for _ in range(times):
            self.now += 10_000
            began = time.process_time()
            change()
            self.tick_ms()
            took.append(1000 * (time.process_time() - began))
        return round(statistics.median(took), 1)

    def all_leases(self) -> None:
        """Every node is heard at once."""
        for at in range(self.cluster.nodes):
            self.lease(at)
        self.settler.apply(WatchUpdate("pods", self.now, WatchProgress()))

    def one_pod(self) -> None:
        """One running pod ends: its session is posted and settled."""
        self._ended = getattr(self, "_ended", -1) + 1
        raw = orjson.loads(self.cluster.raw(self._ended, running=True))
        raw["status"]["phase"] = "Succeeded"
        state = {"terminated": {"startedAt": iso(T0 + 1000), "finishedAt": iso(self.now - 5000)}}
        raw["status"]["containerStatuses"][0]["state"] = state
        item = READ["pods"](raw)
        if item is not None:
            self.settler.apply(WatchUpdate("pods", self.now, ObjectChanged(item, deleted=False)))

    def one_budget(self) -> None:
        """One namespace's budget is spent from now on: its standing is another."""
        self._hours = (getattr(self, "_hours", 0) + 1) % 2
        for raw in self.cluster.budgets(self._hours * 1000):
            item = READ["configmaps"](raw)
            if item is not None:
                self.settler.apply(WatchUpdate("configmaps", self.now, ObjectChanged(item, deleted=False)))

    def beats(self) -> None:
        """The heartbeats of one tick, as the workers write them: 500 a second, or each pod's each 5 s."""
        interval_ms = max(5_000, self.cluster.pods * 2)
        count = max(1, self.cluster.pods * TICK_MS // interval_ms)
        self._beat = getattr(self, "_beat", 0) + 1
        uids = [f"uid-pod-{(self._beat * count + n) % self.cluster.pods:06d}-of-a-job" for n in range(count)]
        with self.store.writing() as connection:
            posts = [beats.HeartbeatPost(uid, "b", self._beat, (0,), self.now) for uid in uids]
            beat(connection, posts, interval_ms)

    def hour(self, beating: bool) -> Json:
        """Ten seconds of quiet life, in which each node is heard once, as rows and bytes of a pod-hour."""
        rows, size, took = self.meter.rows, self.meter.bytes(), []
        ticks = 10_000 // TICK_MS
        for step in range(ticks):
            self.now += TICK_MS
            for at in range(step, self.cluster.nodes, ticks):
                self.lease(at)
            self.settler.apply(WatchUpdate("pods", self.now, WatchProgress()))
            if beating:
                self.beats()
            took.append(self.tick_ms())
        factor = HOUR / 10_000 / self.cluster.pods
        return {
            "rows": round((self.meter.rows - rows) * factor, 1),
            "bytes": round((self.meter.bytes() - size) * factor),
            "tick_ms": round(statistics.median(took), 1),
        }


def old_postings(store: Store, count: int, namespaces: int) -> None:
    """Settled sessions with ten postings each, of the month before, as rows."""
    sessions, postings = [], []
    for at in range(0, count, 10):
        uid, namespace = f"old-{at:07d}", f"team-{at // 10 % namespaces:04d}"
        sessions.append(old_session(uid, namespace, at))
        for part in range(10):
            begin = NOW - 32 * DAY + (at // 10 * 7919 % 25) * DAY + part * HOUR
            day_end = begin - begin % DAY + DAY
            postings.append(old_posting(uid, part, namespace, begin, min(begin + HOUR, day_end)))
        if len(postings) >= 50_000 or at + 10 >= count:
            with store.writing() as connection:
                connection.execute(insert(SESSIONS), sessions)
                connection.execute(insert(POSTINGS), postings)
            sessions, postings = [], []


def old_session(uid: str, namespace: str, at: int) -> Json:
    """A session that ended long ago."""
    fixed = {"owner": "Job/old", "node": f"node-{at % 997:05d}", "models": "A100", "devices": "{}"}
    times = {"bound_ms": NOW - 33 * DAY, "opened_ms": NOW - 33 * DAY, "started_ms": NOW - 32 * DAY}
    ended = {"ended_ms": NOW - DAY, "settled_ms": NOW - DAY, "grace_ms": 0}
    named = {"uid": uid, "namespace": namespace, "name": uid}
    return {**SESSION, **named, **fixed, **times, **ended, "rate_milli": 250}


def old_posting(uid: str, part: int, namespace: str, begin: int, end: int) -> Json:
    """A posting of at most an hour."""
    what = {"kind": "settled", "reason": "the kubelet's timestamps", "created_ms": end, "sequence": part}
    interval = {"from_ms": begin, "to_ms": end, "rate_milli": 250, "amount": 250 * (end - begin)}
    return {"session_uid": uid, "namespace": namespace, **interval, **what}


def rss_mib() -> int:
    """The resident memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) // 1024


def life(url: str, cluster: Cluster, postings: int) -> Json:
    """Everything but the start."""
    store = open_store(url)
    upgrade(store)
    old_postings(store, postings, cluster.namespaces)
    store.close()
    run = Run(url, cluster)
    for heard in cluster.lists(run.now, pods=False):
        run.settler.apply(heard)
    run.tick_ms()
    row: Json = {"pods": cluster.pods, "opened": run.apply(running=False), "changed": run.apply(running=True)}
    row["idle_ms"] = run.after(lambda: None)
    row["all_leases_ms"] = run.after(run.all_leases)
    row["one_pod_ms"] = run.after(run.one_pod)
    row["one_budget_ms"] = run.after(run.one_budget)
    row["settler_hour"] = run.hour(beating=False)
    row["hour_with_beats"] = run.hour(beating=True)
    row["rss_mib"] = rss_mib()
    run.store.close()
    return row


def start(url: str, cluster: Cluster) -> Json:
    """A settler that starts on what is there: until the standings are published."""
    began = time.process_time()
    run = Run(url, cluster)
    read_s = time.process_time() - began
    run.now = NOW + HOUR
    for heard in cluster.lists(run.now, pods=True):
        run.settler.apply(heard)
    listed_s = time.process_time() - began - read_s
    run.tick_ms()
    whole_s = time.process_time() - began
    seconds = {"read": read_s, "listed": listed_s, "whole": whole_s}
    return {"start_s": {name: round(each, 1) for name, each in seconds.items()}, "start_rss_mib": rss_mib()}


def measured(pods: int, namespaces: int, postings: int, database: str, more: Sequence[str] = ()) -> Json:
    """One size, in two processes of its own, as installed."""
    with timekeeper() as (here, url):
        row: Json = {}
        for phase in ("life", "start"):
            numbers = ["--pods", str(pods), "--namespaces", str(namespaces), "--postings", str(postings)]
            row |= figures(
                here, "ledger", "--phase", phase, "--database", database or url, *numbers, *more, quiet=True
            )
        return row


_COLUMNS: tuple[tuple[str, Callable[[Json], object]], ...] = (
    ("pods", lambda row: row["pods"]),
    ("opened/s", lambda row: row["opened"]["events_per_s"]),
    ("changed/s", lambda row: row["changed"]["events_per_s"]),
    ("idle ms", lambda row: row["idle_ms"]),
    ("leases ms", lambda row: row["all_leases_ms"]),
    ("pod ms", lambda row: row["one_pod_ms"]),
    ("budget ms", lambda row: row["one_budget_ms"]),
    ("rows/pod-h", lambda row: row["settler_hour"]["rows"]),
    ("bytes/pod-h", lambda row: row["settler_hour"]["bytes"]),
    ("with beats", lambda row: row["hour_with_beats"]["bytes"]),
    ("start s", lambda row: row["start_s"]["whole"]),
    ("MiB", lambda row: max(row["rss_mib"], row["start_rss_mib"])),
)


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, nargs="*", default=SIZES, help="live pods (%(default)s)")
    parser.add_argument("--namespaces", type=int, default=5_000, help="with a budget each (%(default)s)")
    parser.add_argument("--postings", type=int, default=1_000_000, help="of the past (%(default)s)")
    parser.add_argument("--database", default="", help="URL of an empty one (SQLite in a new folder)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--fair-share", action="store_true", help="with fairShare: on")
    parser.add_argument("--phase", choices=("life", "start"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.phase:
        cluster = Cluster(given.pods[0], given.namespaces, given.fair_share)
        phase = life(given.database, cluster, given.postings) if given.phase == "life" else None
        print(json.dumps(phase if phase is not None else start(given.database, cluster)))
        return
    print("".join(f"{name:>12}" for name, _ in _COLUMNS))
    rows = []
    for pods in given.pods:
        more = ("--fair-share",) if given.fair_share else ()
        rows.append(measured(pods, given.namespaces, given.postings, given.database, more))
        print("".join(f"{column(rows[-1])!s:>12}" for _, column in _COLUMNS), flush=True)
    write(given.json, {"namespaces": given.namespaces, "rows": rows})


if __name__ == "__main__":
    main()
