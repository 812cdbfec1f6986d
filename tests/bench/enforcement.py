"""What exhausted budgets cost the settler, and how soon it decides to evict after a standing has changed.

``python -m tests.bench.enforcement [--pods N] [--namespaces M] [--nodes K] [--json FILE]``. A settler and the
evictor of exhausted budgets in one thread, without an API server. ``steady_percent``: CPU of a core over 20 s
in which nothing happens, with every namespace exhausted and its pods' evictions still ahead: Leases of all
nodes, ticks, and the evictor's steps. ``decided_ms``: CPU from the end of the tick that changed the standing
of one namespace to the first call about one of its pods; ``tick_ms``: CPU of that tick. Medians of 5.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any, cast

import orjson

from tests.bench import live_pods
from tests.bench.command import arguments, write
from tests.bench.ledger import Run
from tests.timekeeper.worlds import READ
from timekeeper.core import names
from timekeeper.runtime.api_server import Answered, Api, Reply
from timekeeper.runtime.event_recorder import EventRecorder
from timekeeper.runtime.log import log
from timekeeper.settler.cluster.cluster_state import ItemChanged, StreamAlive, WatchUpdate
from timekeeper.settler.evictions.budget_round import BudgetRound
from timekeeper.settler.evictions.calls import EvictorContext, timestamp, view_of
from timekeeper.settler.settler import TICK_MS
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

Json = dict[str, Any]

STEPS_A_SECOND = 5
RUNS = 5
SETTINGS = "lookahead: 0s\nevictRate: 600\nevictGrace: {}"


class Calls:
    """In place of the API server: accepts each call, and keeps the CPU time of the first."""

    def __init__(self) -> None:
        self.first: float | None = None

    def call(self, *_given: object, **_options: object) -> Reply:
        if self.first is None:
            self.first = time.process_time()
        return Answered(200, {})

    def first_at(self) -> float:
        """The CPU time of the first call, which must have been made."""
        assert self.first is not None
        return self.first


class Bench:
    """The cluster's state, with budgets that are turned from outside."""

    def __init__(self, url: str, pods: int, namespaces: int, nodes: int) -> None:
        live_pods.PODS_A_NODE = -(-pods // nodes)
        self.cluster = live_pods.Cluster(pods, namespaces)
        self.run = Run(url, self.cluster)
        self.calls = Calls()
        for update in self.cluster.lists(self.run.now, pods=True):
            self.run.settler.apply(update)

    def budgets(self, grace: str, spent: int) -> None:
        """The first ``spent`` namespaces have no budget left."""
        data = {
            f"team-{at:04d}": f"gpuHours: {0 if at < spent else 100000}\nonExhausted: evict"
            for at in range(self.cluster.namespaces)
        }
        metadata = {"name": "bursar-budgets", "uid": "u0", "labels": {"bursar.dev/budgets": "true"}}
        item = READ["configmaps"](
            {"metadata": metadata, "data": {"_settings": SETTINGS.format(grace), **data}}
        )
        assert item is not None
        self.run.settler.apply(WatchUpdate("configmaps", self.run.now, ItemChanged(item, deleted=False)))

    def evictor(self) -> BudgetRound:
        """As at the start of a term, after its quiet time."""
        settler = self.run.settler
        api = cast(Api, self.calls)
        events = EventRecorder[str](api, "bursar.dev/bench", "bench", lambda: self.run.now, log)
        context = EvictorContext(
            self.run.store,
            settler.epoch,
            api,
            events,
            view_of(settler),
            lambda: self.run.now,
            lambda: self.run.now,
        )
        made = BudgetRound(context, seconds=lambda: self.run.now / 1000 + time.process_time())
        self.run.now += 60_000
        return made

    def notice_all(self) -> None:
        """Every pod has its notice, a day ahead."""
        noted = {names.EVICT_AFTER: timestamp(self.run.now + 86_400_000)}
        for at in range(self.cluster.pods):
            raw = orjson.loads(self.cluster.raw(at, running=True))
            raw["metadata"]["annotations"] |= noted
            item = READ["pods"](raw)
            assert item is not None
            self.run.settler.apply(WatchUpdate("pods", self.run.now, ItemChanged(item, deleted=False)))


def steady_percent(bench: Bench) -> float:
    """Of a core."""
    run = bench.run
    bench.budgets("24h", bench.cluster.namespaces)
    bench.notice_all()
    run.tick_ms()
    evictor = bench.evictor()
    run.tick_ms()
    evictor.step()
    bench.calls.first = None
    began, ticks = time.process_time(), 20_000 // TICK_MS
    for tick in range(ticks):
        run.now += TICK_MS
        for at in range(tick % (ticks // 2), bench.cluster.nodes, ticks // 2):
            run.lease(at)
        run.settler.apply(WatchUpdate("pods", run.now, StreamAlive()))
        run.tick_ms()
        for _ in range(STEPS_A_SECOND * TICK_MS // 1000):
            evictor.step()
    assert bench.calls.first is None, "nothing happened"
    return round(100 * (time.process_time() - began) / 20, 1)


def decided(bench: Bench) -> Mapping[str, float]:
    """Both medians."""
    run = bench.run
    took: list[float] = []
    ticks: list[float] = []
    for _ in range(RUNS):
        bench.budgets("0s", 0)
        run.tick_ms()
        evictor = bench.evictor()
        run.tick_ms()
        evictor.step()
        bench.calls.first = None
        run.now += 1_000
        bench.budgets("0s", 1)
        ticks.append(run.tick_ms())
        began = time.process_time()
        evictor.step()
        took.append(1000 * (bench.calls.first_at() - began))
    return {"decided_ms": round(statistics.median(took), 1), "tick_ms": round(statistics.median(ticks), 1)}


def main() -> None:
    """Prints the figures and writes the JSON."""
    given = arguments(__doc__, pods=(40_000, ""), namespaces=(1_000, "exhausted"), nodes=(5_000, ""))
    with tempfile.TemporaryDirectory(prefix="bursar-bench-") as folder:
        url = f"sqlite:///{folder}/ledger.db"
        store = open_store(url)
        upgrade(store)
        store.close()
        bench = Bench(url, given.pods, given.namespaces, given.nodes)
        bench.run.tick_ms()
        found: Json = dict(decided(bench))
        found["steady_percent"] = steady_percent(bench)
        found["load"] = os.getloadavg()
    print(found)
    write(given.json, found)


if __name__ == "__main__":
    main()
