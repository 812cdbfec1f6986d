"""What metered pods cost the settler beside as many governed ones: a tick, memory, and an event of the watch.

``python -m tests.bench.metered [--pods N] [--json FILE]``. Bytecodes and C calls are counted as in
`tests.bench.cost`, so that other work on the machine counts for nothing; memory is what stays allocated after
the first tick. Each kind has a process of its own.
"""

import gc
import multiprocessing
import os
import tempfile
import tracemalloc
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from tests.bench.command import arguments, write
from tests.bench.cost.counters import bytecodes, c_calls
from tests.bench.live_pods import Cluster
from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import READ, T0, lease
from timekeeper.settler.cluster.cluster_state import ItemChanged, StreamAlive, WatchUpdate
from timekeeper.settler.settler import Settler
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

Json = dict[str, Any]
Figures = dict[str, float]

PODS, NAMESPACES = 20_000, 200
CALLS = 8


class KindOfPods(Cluster):
    """As admission wrote them, or, metered, as their users did."""

    def __init__(self, pods: int, is_metered: bool) -> None:
        super().__init__(pods, min(NAMESPACES, pods))
        self.is_metered = is_metered

    def raw(self, at: int, running: bool) -> bytes:
        """One pod's JSON."""
        whole = super().raw(at, running)
        if not self.is_metered:
            return whole
        pod = orjson.loads(whole)
        metadata = pod["metadata"]
        metadata["annotations"] = {}
        metadata["labels"] = {name: each for name, each in metadata["labels"].items() if "bursar" not in name}
        return orjson.dumps(pod)


def measured(pods: int, is_metered: bool) -> Figures:
    """What is counted of a settler that has so many running pods."""
    with tempfile.TemporaryDirectory() as folder:
        return _measured(Path(folder), KindOfPods(pods, is_metered))


def _measured(folder: Path, cluster: KindOfPods) -> Figures:
    now = T0 + 3_600_000
    store = open_store(f"sqlite:///{folder}/ledger.db")
    upgrade(store)
    gc.collect()
    tracemalloc.start()
    settler = Settler(store, lambda: now, lambda _: None, only_meter=cluster.is_metered)
    for update in cluster.lists(now, pods=True):
        settler.apply(update)
    settler.tick()
    gc.collect()
    figures = {"memory, MiB": tracemalloc.get_traced_memory()[0] / 2**20}
    tracemalloc.stop()
    ticks, events = [], []
    for number in range(CALLS + 3):
        now += 1_000
        raw = _ended(cluster, number, now)
        heard = lease(now - 1, f"node-{number % cluster.nodes:05d}")
        settler.apply(WatchUpdate("leases", now, _changed("leases", heard)))
        settler.apply(WatchUpdate("pods", now, StreamAlive()))
        event = partial(_taken_in, settler, raw, now)
        count = bytecodes if number % 2 else c_calls
        seen, ticked = count(event), count(settler.tick)
        if number >= 3:
            events.append((count, seen))
            ticks.append((count, ticked))
    for count, word in ((bytecodes, "bytecodes"), (c_calls, "C calls")):
        for name, found in (("event", events), ("tick", ticks)):
            of_it = [each for kind, each in found if kind is count]
            figures[f"{name}, {word}"] = sum(of_it) / len(of_it)
    store.close()
    return figures


def _ended(cluster: Cluster, at: int, now_ms: int) -> Json:
    raw: Json = orjson.loads(cluster.raw(at, running=True))
    raw["status"]["phase"] = "Succeeded"
    state = {"terminated": {"startedAt": iso(T0 + 1_000), "finishedAt": iso(now_ms - 100)}}
    raw["status"]["containerStatuses"][0]["state"] = state
    return raw


def _taken_in(settler: Settler, raw: Json, now_ms: int) -> None:
    settler.apply(WatchUpdate("pods", now_ms, _changed("pods", raw)))


def _changed(source: str, raw: Json) -> ItemChanged:
    item = READ[source](raw)
    if item is None:
        raise SystemExit(f"the settler does not read this object of {source}")
    return ItemChanged(item, deleted=False)


def compared(pods: int) -> dict[str, Figures]:
    """Of governed and of metered pods, and the second by the first."""
    apart = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, apart, _silent, max_tasks_per_child=1) as pool:
        kinds = {"governed": False, "metered": True}
        found = {name: pool.submit(measured, pods, is_metered).result() for name, is_metered in kinds.items()}
    times = {each: found["metered"][each] / found["governed"][each] for each in found["governed"]}
    return {**found, "times": times}


def _silent() -> None:
    """The log goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def table(found: Mapping[str, Figures]) -> str:
    """A line for each figure."""
    lines = [f"{'':<20}" + "".join(f"{name:>14}" for name in found)]
    for name in found["times"]:
        row = [f"{found[kind][name]:>14,.1f}" for kind in ("governed", "metered")]
        lines.append(f"{name:<20}{''.join(row)}{found['times'][name]:>14.3f}")
    return "\n".join(lines)


def main() -> None:
    """See above."""
    given = arguments(__doc__, pods=(PODS, "pods of each kind"))
    found = compared(given.pods)
    print(table(found))
    write(given.json, found)


if __name__ == "__main__":
    main()
