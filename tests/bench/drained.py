"""What a drain for a gang costs the filter calls of single pods.

``python -m tests.bench.drained [--nodes N] [--pods P] [--drained D] [--calls K] [--json FILE]``. An extender
in this process with N nodes of 8 cards, P bound pods, and D empty nodes of 16 beside them. By turns these are
drained for `BLOCK` calls, and not; a pod is booked before each call. Told are milliseconds of CPU of pods
that ``fit`` elsewhere, that have ``no room`` anywhere, and that fit on the drained nodes alone (``kept``:
beside the calls without room and drain); ``ratio``: of the medians.
"""

import gc
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from scheduler_ext import settings
from scheduler_ext.assembly.extender import Extender
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_any
from scheduler_ext.snapshot.drains import Drain
from tests.bench.command import arguments, write
from tests.bench.extender import body_of, bound_pods, figures, node, pod
from tests.support.kubeconfig import kubeconfig
from timekeeper.runtime.clock import now_ms
from timekeeper.runtime.connect import connect

Json = dict[str, Any]

CARDS, LARGE = 8, 16
LASTS_MS = 3_600_000
BLOCK = 20  # the first call of a block, for which the nodes of the drain have changed, is left out
ASKED: dict[str, dict[str, str]] = {
    "fit": {"bursar.dev/gpu-percent": "20", "cpu": "2"},
    "no room": {"bursar.dev/gpu-memory": "90000", "cpu": "1"},  # no card has as much
    "kept": {"bursar.dev/gpu-count": str(CARDS + 1), "cpu": "1"},
}


class Bench:
    """The extender, and what changes in it."""

    def __init__(self, nodes: int, pods: int, drained: int, calls: int, folder: Path) -> None:
        config = kubeconfig(folder, "http://127.0.0.1:9")  # nothing is asked there
        self._extender = Extender(settings.read([], {}), connect(config), lambda event, **fields: None)
        sizes = {f"node-{at}": CARDS if at < nodes else LARGE for at in range(nodes + drained)}
        self._names = list(sizes)
        cache = self._extender.cache
        cache.pods_listed(map(read_any, bound_pods(nodes, CARDS, pods, random.Random(1))))
        cache.nodes_listed(read_node(node(name, cards)) for name, cards in sizes.items())
        self._more = iter(list(bound_pods(nodes, CARDS, calls, random.Random(2))))
        self._booked = 0
        cards = tuple(
            (name, tuple(f"GPU-{name}-{at}" for at in range(LARGE))) for name in self._names[nodes:]
        )
        until_ms = now_ms() + LASTS_MS
        self._drain = Drain("team-a", "bursar/big", "big", until_ms, until_ms, until_ms, cards)

    def drain(self, is_on: bool) -> None:
        """The empty nodes are drained from now on, or not."""
        cache = self._extender.cache
        if is_on:
            cache.drain(self._drain)
        else:
            cache.undrain()

    def filter(self, name: str) -> float:
        """Milliseconds of CPU of a call after one more pod has been booked."""
        raw = next(self._more)
        self._booked += 1
        raw["metadata"]["uid"] = f"uid-more-{self._booked}"
        self._extender.cache.pod_updated(read_any(raw))
        body = body_of({"Pod": pod("p", ASKED[name]), "NodeNames": self._names})
        began = time.process_time()
        answer = self._extender.calls["/filter"](body)
        took = 1000 * (time.process_time() - began)
        assert isinstance(answer.body, bytes)
        _check(name, json.loads(answer.body))
        return took


def _check(name: str, answer: Json) -> None:
    refused = {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
    is_kept = any("kept for" in each for each in refused.values())
    if (bool(answer["NodeNames"]), is_kept) != (name == "fit", name == "kept"):
        raise SystemExit(f"a pod that is to be {name} was answered otherwise")


def measured(bench: Bench, calls: int) -> Json:
    """A row for each kind of pod, and the ratios."""
    times: dict[str, list[float]] = {}
    for block in range(2 * -(-calls // BLOCK)):
        is_on = block % 2 == 1
        bench.drain(is_on)
        for name in ASKED:
            if name == "kept" and not is_on:
                continue
            taken = [bench.filter(name) for _ in range(BLOCK)]
            times.setdefault(f"{name}, {'with' if is_on else 'without'} drain", []).extend(taken[1:])
    beside = {"kept": "no room"}
    ratios = {
        name: round(
            statistics.median(times[f"{name}, with drain"])
            / statistics.median(times[f"{beside.get(name, name)}, without drain"]),
            3,
        )
        for name in ASKED
    }
    return {"cpu_ms": {name: figures(each) for name, each in times.items()}, "ratio": ratios}


def main() -> None:
    """Prints the table and writes the JSON."""
    given = arguments(
        __doc__, nodes=(5_000, ""), pods=(40_000, ""), drained=(8, "nodes"), calls=(200, "of each kind")
    )
    with tempfile.TemporaryDirectory(prefix="bursar-bench-") as folder:
        total = 5 * (given.calls + BLOCK)
        bench = Bench(given.nodes, given.pods, given.drained, total, Path(folder))
        gc.collect()
        gc.freeze()  # as the extender does when its books are complete
        found = {"nodes": given.nodes, "pods": given.pods} | measured(bench, given.calls)
    for name, row in found["cpu_ms"].items():
        print(f"{name:22}" + "".join(f"{key} {value:7.2f}  " for key, value in row.items()))
    print("ratio: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in found["ratio"].items()))
    write(given.json, found)


if __name__ == "__main__":
    main()
