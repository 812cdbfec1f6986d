"""What metered pods, and pods half of which have a device by a claim, cost the settler beside as many
governed ones: a tick, memory, and an event of the watch.

``python -m tests.bench.metered [--pods N] [--json FILE]``. Bytecodes and C calls are counted as in
`tests.bench.cost`, so that other work on the machine counts for nothing; memory is what stays allocated after
the first tick. Each kind has a process of its own. In each tick, of a second, a tenth of the nodes renews its
Lease.
"""

import gc
import multiprocessing
import os
import tempfile
import tracemalloc
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from tests.bench.command import arguments, write
from tests.bench.cost.counters import bytecodes, c_calls
from tests.bench.live_pods import PODS_A_NODE, Cluster
from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import READ, T0, lease
from timekeeper.settler.cluster.cluster_state import Item, ItemChanged, ListReplaced, StreamAlive, WatchUpdate
from timekeeper.settler.settler import Settler
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

Json = dict[str, Any]
Figures = dict[str, float]

PODS, NAMESPACES = 20_000, 200
CALLS = 10  # of each counter: a kubelet renews its Lease each 10 s, and claims are charged in such steps
CLAIMS = "resourceclaims"
TIMES = "times "


class Governed(Cluster):
    """Pods as admission wrote them."""

    is_metered = False
    sources: tuple[str, ...] = ("pods",)

    def __init__(self, pods: int) -> None:
        super().__init__(pods, min(NAMESPACES, pods))

    def end(self, at: int, now_ms: int) -> tuple[str, Json]:
        """The event by which what a pod holds ends: its source, and the object."""
        return "pods", _ended(self, at, now_ms)


class Metered(Governed):
    """Pods as their users wrote them."""

    is_metered = True

    def raw(self, at: int, running: bool) -> bytes:
        """One pod's JSON."""
        pod = orjson.loads(super().raw(at, running))
        metadata = pod["metadata"]
        metadata["annotations"] = {}
        metadata["labels"] = {name: each for name, each in metadata["labels"].items() if "bursar" not in name}
        return orjson.dumps(pod)


class HalfClaims(Governed):
    """Of two pods one has a device by a claim."""

    sources = ("pods", CLAIMS)

    def raw(self, at: int, running: bool) -> bytes:
        """One pod's JSON."""
        whole = super().raw(at, running)
        if at % 2:
            return whole
        pod = orjson.loads(whole)
        pod["metadata"]["annotations"] = {"bursar.dev/standing": "IN_BUDGET", "bursar.dev/claims": "1"}
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"claim-{at:06d}"}]
        return orjson.dumps(pod)

    def claim(self, at: int, is_held: bool) -> Json:
        """The claim of a pod. ``is_held``: whether it is allocated."""
        node, uid = f"node-{at // PODS_A_NODE:05d}", f"uid-pod-{at:06d}-of-a-job"
        devices = [allocated(f"gpu-{at % PODS_A_NODE}", pool=node)] if is_held else []
        namespace = f"team-{at % self.namespaces:04d}"
        body = device_claim(f"claim-{at:06d}", *devices, namespace=namespace, at_ms=T0, pods=(uid,))
        if is_held:
            (term,) = body["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
            term["matchFields"][0]["values"] = [node]
        return body

    def lists(self, at_ms: int, pods: bool) -> Iterator[WatchUpdate]:
        """Everything there is, with claims and devices."""
        yield from super().lists(at_ms, pods)
        names = [f"gpu-{number}" for number in range(PODS_A_NODE)]
        slices = (device_slice(*names, node=f"node-{at:05d}") for at in range(self.nodes))
        claims = (self.claim(at, is_held=True) for at in range(0, self.pods, 2))
        for source, raws in (("resourceslices", slices), (CLAIMS, claims)):
            yield WatchUpdate(source, at_ms, ListReplaced(tuple(_read(source, each) for each in raws)))

    def end(self, at: int, now_ms: int) -> tuple[str, Json]:
        """Of a pod by a claim, the claim's release."""
        return (CLAIMS, self.claim(at, is_held=False)) if at % 2 == 0 else super().end(at, now_ms)


KINDS: dict[str, type[Governed]] = {"governed": Governed, "metered": Metered, "half claims": HalfClaims}


def measured(pods: int, kind: str) -> Figures:
    """What is counted of a settler that has so many running pods."""
    with tempfile.TemporaryDirectory() as folder:
        return _measured(Path(folder), KINDS[kind](pods))


def _measured(folder: Path, cluster: Governed) -> Figures:
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
    for number in range(2 * CALLS + 3):
        now += 1_000
        source, raw = cluster.end(2 * number, now)
        for at in range(number % 10, cluster.nodes, 10):
            heard = lease(now - 1, f"node-{at:05d}")
            settler.apply(WatchUpdate("leases", now, _changed("leases", heard)))
        for each in cluster.sources:
            settler.apply(WatchUpdate(each, now, StreamAlive()))
        event = partial(_taken_in, settler, source, raw, now)
        count = bytecodes if number < CALLS + 3 else c_calls
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


def _taken_in(settler: Settler, source: str, raw: Json, now_ms: int) -> None:
    settler.apply(WatchUpdate(source, now_ms, _changed(source, raw)))


def _changed(source: str, raw: Json) -> ItemChanged:
    return ItemChanged(_read(source, raw), deleted=False)


def _read(source: str, raw: Json) -> Item:
    item = READ[source](raw)
    if item is None:
        raise SystemExit(f"the settler does not read this object of {source}")
    return item


def compared(pods: int) -> dict[str, Figures]:
    """Of each kind of pods, and of each other kind by the governed ones, under its name with ``times`` before
    it."""
    apart = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, apart, _silent, max_tasks_per_child=1) as pool:
        found = {name: pool.submit(measured, pods, name).result() for name in KINDS}
    first, *others = found.values()
    times = [{each: other[each] / first[each] for each in first} for other in others]
    names = [f"{TIMES}{name}" for name in list(found)[1:]]
    return {**found, **dict(zip(names, times, strict=True))}


def _silent() -> None:
    """The log goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def table(found: Mapping[str, Figures]) -> str:
    """A line for each figure."""
    lines = [f"{'':<20}" + "".join(f"{name:>18}" for name in found)]
    for name in next(iter(found.values())):
        row = [f"{each[name]:>18,.{3 if kind.startswith(TIMES) else 1}f}" for kind, each in found.items()]
        lines.append(f"{name:<20}{''.join(row)}")
    return "\n".join(lines)


def main() -> None:
    """See above."""
    given = arguments(__doc__, pods=(PODS, "pods of each kind"))
    found = compared(given.pods)
    print(table(found))
    write(given.json, found)


if __name__ == "__main__":
    main()
