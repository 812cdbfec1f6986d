"""What the other dialects cost: filter over nodes and pods of eleven dialects beside filter over as many of
Bursar's own.

``python -m tests.bench.dialects --nodes N --pods P --calls K --json FILE``. In one process two extenders,
each with N nodes of 8 cards and P bound pods: the first with Bursar's nodes and pods alone, the second with
an equal part of each dialect. Their calls alternate: a pod is booked, and another one is filtered over all
nodes, in the second cluster a pod of each dialect in turn. Milliseconds of a call straight into the WSGI app,
and of the process's CPU in it, which other processes on the machine do not lengthen.
"""

import gc
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scheduler_ext import settings
from scheduler_ext.assembly.extender import Extender
from scheduler_ext.binding.manifest import written_for
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import Pod, read_any
from scheduler_ext.scoring.policy import BINPACK
from tests.bench.command import arguments, write
from tests.bench.extender import SIZES, WARM_UP, body_of, called, figures, node, pod
from tests.support.kubeconfig import kubeconfig
from timekeeper.core.values import Placement
from timekeeper.runtime.connect import connect

Json = dict[str, Any]
Shape = dict[str, str]

CARDS = 8
MIB = 81_920
OWN = "bursar"

# dialect -> what a node of it advertises, and what its pods request
NAMED: dict[str, tuple[dict[str, int], Shape]] = {
    "tencent": (
        {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 320},
        {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "40"},
    ),
    "nvidia": ({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": "1"}),
    "nano-v0.1": (
        {"nano-gpu.io/gpu-core": 100, "nano-gpu.io/gpu-memory": MIB},
        {"nano-gpu.io/gpu-core": "20"},
    ),
    "nano-v0.3": ({"nano-gpu/gpu-percent": 100}, {"nano-gpu/gpu-percent": "20"}),
    "qgpu": ({"nano-gpu/qgpu-core": 100, "nano-gpu/qgpu-memory": MIB}, {"nano-gpu/qgpu-core": "20"}),
    "elastic": (
        {"elasticgpu.io/gpu-core": 100, "elasticgpu.io/gpu-memory": MIB},
        {"elasticgpu.io/gpu-core": "20"},
    ),
    "gpushare": ({"aliyun.com/gpu-mem": 80}, {"aliyun.com/gpu-mem": "16"}),
    "hami": ({"nvidia.com/gpu": 10}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16000"}),
    "volcano": (
        {"volcano.sh/vgpu-number": 10},
        {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "16000"},
    ),
    "gas": (
        {"gpu.intel.com/i915": 10, "gpu.intel.com/millicores": 1000},
        {"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "200"},
    ),
}


def node_of(dialect: str, name: str) -> Json:
    """A node as this system's plugins leave it."""
    if dialect == OWN:
        return node(name, CARDS)
    amounts = {resource: str(CARDS * each) for resource, each in NAMED[dialect][0].items()}
    if dialect == "gpushare":
        amounts["aliyun.com/gpu-count"] = str(CARDS)
    registers = {
        "hami": ("hami.io/node-nvidia-register", f"10,{MIB},100,NVIDIA-H100,0,true"),
        "volcano": ("volcano.sh/node-vgpu-register", f"10,{MIB},NVIDIA-H100,true,hami-core"),
    }
    annotations = {}
    if dialect in registers:
        register, fields = registers[dialect]
        annotations[register] = "".join(f"GPU-{name}-{at},{fields}:" for at in range(CARDS))
    labels = {"gpu.intel.com/gpu-numbers": ".".join(map(str, range(CARDS)))} if dialect == "gas" else {}
    capacity = {"cpu": "64", **amounts}
    return {
        "metadata": {"name": name, "resourceVersion": "1", "annotations": annotations, "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def shapes(dialect: str) -> list[Shape]:
    """The requests of its pods."""
    return [*SIZES] if dialect == OWN else [{**NAMED[dialect][1], "cpu": "1"}]


class Cluster:
    """An extender with nodes of these dialects in turn, and bound pods at random wherever there is room."""

    def __init__(self, dialects: list[str], nodes: int, pods: int, config: Path) -> None:
        self.names = [f"node-{at}" for at in range(nodes)]
        self.dialects, self._rng, self._number = dialects, random.Random(1), 0
        self._extender = Extender(settings.read([], {}), connect(config), lambda event, **fields: None)
        self._of = {name: dialects[at % len(dialects)] for at, name in enumerate(self.names)}
        self._extender.cache.pods_listed([])
        self._extender.cache.nodes_listed(read_node(node_of(self._of[name], name)) for name in self.names)
        for _ in range(pods):
            self.book()
        asked = [shape for each in dialects for shape in shapes(each)]
        # Results are cached by shape, so both clusters are asked for equally many.
        more = ({"bursar.dev/gpu-percent": str(11 + at), "cpu": "1"} for at in range(len(NAMED)))
        self._turn = itertools.cycle([*asked, *more] if dialects == [OWN] else asked)

    def book(self) -> None:
        """One more pod that runs."""
        for name in self._rng.choices(self.names, k=1_000):
            raw = pod(f"bound-{self._number}", self._rng.choice(shapes(self._of[name])))
            read = read_any(raw)
            if not isinstance(read, Pod) or read.request is None:
                raise SystemExit(f"{self._of[name]}: {raw['spec']['containers'][0]['resources']}")
            node_info = self._extender.cache.snapshot.node(name)
            placement = fit(read.request, node_info, BINPACK)
            if isinstance(placement, Placement):
                written = written_for(read, read.request, placement, name, 7, family=self._of[name])
                raw["metadata"]["annotations"] = dict(written.annotations)
                raw["spec"]["nodeName"], raw["status"]["phase"] = name, "Running"
                self._extender.cache.pod_updated(read_any(raw))
                self._number += 1
                return
        raise SystemExit("these pods do not fit on these nodes: give more nodes or fewer pods")

    def filtered(self) -> tuple[float, float]:
        """The milliseconds of the next pod's filter, and of CPU in it."""
        body = body_of({"Pod": pod("p", next(self._turn)), "NodeNames": self.names})
        before = time.process_time()
        took = called(self._extender.calls["/filter"], body)
        return took, 1000 * (time.process_time() - before)

    @property
    def closed(self) -> int:
        """Closed nodes: there must be none."""
        return sum(bool(each.closed) for each in self._extender.cache.snapshot.nodes.values())


def alternated(clusters: list[Cluster], calls: int) -> list[list[tuple[float, float]]]:
    """The filter times of each cluster."""
    times: list[list[tuple[float, float]]] = [[] for _ in clusters]
    for number in range(-WARM_UP, calls):
        for cluster, each in zip(clusters, times, strict=True):
            cluster.book()
            took = cluster.filtered()
            if number >= 0:
                each.append(took)
    return times


def told(times: list[tuple[float, float]]) -> dict[str, float]:
    """Percentiles of the time and of the CPU."""
    wall, cpu = (figures(list(each)) for each in zip(*times, strict=True))
    return wall | {f"CPU {part}": value for part, value in cpu.items()}


def main() -> int:
    """Measure, print, write the JSON."""
    given = arguments(__doc__, nodes=(5_000, ""), pods=(40_000, ""), calls=(500, ""))
    with tempfile.TemporaryDirectory(prefix="bursar-bench-") as text:
        config = kubeconfig(Path(text), "http://127.0.0.1:1")
        clusters = [Cluster(dialects, given.nodes, given.pods, config) for dialects in ([OWN], [OWN, *NAMED])]
        gc.collect()
        gc.freeze()
        own, mixed = map(told, alternated(clusters, given.calls))
    if any(each.closed for each in clusters):
        raise SystemExit("nodes are closed")
    ratio = {part: round(mixed[part] / own[part], 2) for part in own}
    found = {"nodes": given.nodes, "pods": given.pods, "own": own, "mixed": mixed, "ratio": ratio}
    print(f"{given.nodes} nodes x {CARDS} cards, {given.pods} bound pods; filter, milliseconds")
    for name, row in (("Bursar's own", own), ("all dialects", mixed), ("ratio", ratio)):
        print(f"{name:16}" + "".join(f"{part} {value:<8}  " for part, value in row.items()))
    write(given.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
