"""Metered pods, and pods with claims, cost the settler what governed ones do: a tick, memory, and an event of
the watch.

Bytecodes and C calls are counted as in `tests.bench.cost`, so that other work on the machine counts for
nothing; memory is what stays allocated after the first tick. Each kind has a process of its own. In each
tick, of a second, a tenth of the nodes renews its Lease, and one pod or claim ends: of so few pods, that is
most of a tick's work.
"""

import gc
import multiprocessing
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.bench.cost.counters import bytecodes, c_calls
from tests.bench.live_pods import PODS_A_NODE, Cluster
from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import READ, T0, lease
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchProgress
from timekeeper.settler.cluster.cluster_state import Item, WatchUpdate
from timekeeper.settler.settler import Settler
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

Json = dict[str, Any]
Figures = dict[str, float]

PODS = 200  # of each kind, each in a namespace of its own
CALLS = 10  # of each counter: a kubelet renews its Lease each 10 s, and claims are charged in such steps
CLAIMS = "resourceclaims"


class Governed(Cluster):
    """Pods as admission wrote them."""

    is_metered = False
    sources: tuple[str, ...] = ("pods",)

    def __init__(self, pods: int) -> None:
        super().__init__(pods, pods)

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
            yield WatchUpdate(source, at_ms, ObjectsListed(tuple(_read(source, each) for each in raws)))

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
            settler.apply(WatchUpdate(each, now, WatchProgress()))
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


def _changed(source: str, raw: Json) -> ObjectChanged[Item]:
    return ObjectChanged(_read(source, raw), deleted=False)


def _read(source: str, raw: Json) -> Item:
    item = READ[source](raw)
    if item is None:
        raise SystemExit(f"the settler does not read this object of {source}")
    return item


@pytest.fixture(scope="module")
def figures() -> dict[str, Figures]:
    """Of each kind of pods."""
    apart = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, apart, _silent, max_tasks_per_child=1) as pool:
        return {name: pool.submit(measured, PODS, name).result() for name in KINDS}


def _silent() -> None:
    """The log goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "most"), [("metered", 1.1), ("half claims", 1.5)])
def test_a_tick_memory_and_an_event_cost_hardly_more_than_of_governed_pods(
    figures: dict[str, Figures], kind: str, most: float
) -> None:
    times = {name: figures[kind][name] / figure for name, figure in figures["governed"].items()}

    assert {name: ratio for name, ratio in times.items() if ratio > most} == {}
