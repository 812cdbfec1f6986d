"""What GPU pods that wait cost the others: how fast kube-scheduler binds pods without GPUs beside them.

``python -m tests.bench.waiting [--waiting N] [--pods P] [--rounds R] [--json FILE]``. One control plane, a
kube-scheduler for all pods, and the recommended installation beside it: a kube-scheduler of its own for GPU
pods, with our extender. Every card is in use by more than a half, so that N pods which want a half of one
wait though kube-scheduler's own sums would have room: the worst case, for then each event makes it try them
all. In rounds by turns without and with the N, P pods without GPUs are created at 50 a second, and then as
many while their kube-scheduler is down, which then has them all at once. Told are the pods bound a second
between the first tenth and the last, and how long one waits from its creation on. ``kept``: the part of each
rate that is left beside the N, the median of the rounds.
"""

import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.scheduler import GPU_PROFILE, PLAIN_PROFILE
from tests.bench.command import arguments, write
from tests.bench.throughput import CREATORS, PODS, Bench, until

Json = dict[str, Any]

NODES = 25  # of 8 cards
A_SECOND = 50
PLAIN = "kube-scheduler"
OTHERS = "/api/v1/namespaces/others/pods"
SIXTY, HALF = ({"bursar.dev/gpu-percent": percent} for percent in ("60", "50"))


class World:
    """The cluster with its cards in use, and its two schedulers."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        bench.must("POST", "/api/v1/namespaces", {"metadata": {"name": "others"}})
        until(lambda: bench.cp.api.answers("/api/v1/namespaces/others/serviceaccounts/default"))
        bench.cp.start_scheduler(PLAIN)
        for _ in range(NODES * 8):
            self._create(PODS, GPU_PROFILE, SIXTY)
        until(lambda: self._are_bound(NODES * 8))

    def wait(self, count: int) -> None:
        """So many pods come for which there is no card."""
        for _ in range(count):
            self._create(PODS, GPU_PROFILE, HALF, "waiting")
        until(lambda: len(self._refused()) == count)

    def leave(self) -> None:
        """They go again."""
        self._bench.must("DELETE", f"{PODS}?labelSelector=for=waiting&gracePeriodSeconds=0")

    def _empty(self) -> None:
        self._bench.must("DELETE", f"{OTHERS}?gracePeriodSeconds=0")
        until(lambda: not self._bench.must("GET", f"{OTHERS}?limit=1")["items"])

    def rate(self, pods: int, a_second: int) -> Json:
        """Pods without GPUs, so many a second or (0) at once: how many are bound a second, and how long one
        of them waits."""
        self._empty()
        version = self._bench.must("GET", f"{OTHERS}?limit=1")["metadata"]["resourceVersion"]
        created: dict[str, float] = {}
        creating = threading.Thread(target=self._create_all, args=(pods, a_second, created))
        if not a_second:
            self._bench.cp.stop_scheduler(PLAIN)
        creating.start()
        if not a_second:
            creating.join()
            self._bench.cp.start_scheduler(PLAIN)
        times = []
        for uid in self._bench.bound(version, OTHERS):
            times.append((time.monotonic(), uid))
            if len(times) == pods:
                break
        creating.join()
        first, last = pods // 10, pods - pods // 10 - 1
        waits = sorted(1000 * (at - created[uid]) for at, uid in times)
        return {
            "per_s": (last - first) / (times[last][0] - times[first][0]),
            "p50_ms": waits[pods // 2],
            "p99_ms": waits[pods * 99 // 100],
        }

    def _create_all(self, pods: int, a_second: int, created: dict[str, float]) -> None:
        begun = time.monotonic()

        def create(at: int) -> None:
            if a_second:
                time.sleep(max(0.0, begun + at / a_second - time.monotonic()))
            asked = time.monotonic()
            created[self._create(OTHERS, PLAIN_PROFILE, {})] = asked

        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(create, range(pods)))

    def _create(self, path: str, scheduler: str, limits: Json, what: str = "running") -> str:
        resources = {"limits": limits, "requests": {"cpu": "10m"}}
        spec = {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "example/app:1", "resources": resources}],
        }
        metadata = {"generateName": "bench-", "labels": {"for": what}}
        made = self._bench.must("POST", path, {"metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def _are_bound(self, count: int) -> bool:
        items = self._bench.must("GET", PODS)["items"]
        return sum("nodeName" in each["spec"] for each in items) == count

    def _refused(self) -> list[Json]:
        items = self._bench.must("GET", f"{PODS}?labelSelector=for=waiting")["items"]
        return [each for each in items if each["status"].get("conditions")]


def measured(world: World, waiting: int, pods: int, rounds: int) -> Json:
    """A row for each way, and what is kept."""
    taken: dict[str, list[Json]] = {}
    for number in range(rounds):
        for count in (0, waiting):
            world.wait(count)
            for name, a_second in (("paced", A_SECOND), ("at_once", 0)):
                one = world.rate(pods, a_second)
                taken.setdefault(f"{name}_{'beside' if count else 'alone'}", []).append(one)
                said = f"round {number + 1} of {rounds}: {count} waiting, {name}"
                print(f"{said}: {one['per_s']:.0f}/s", file=sys.stderr, flush=True)
            world.leave()
    rows = {
        name: {key: round(statistics.median(one[key] for one in ones), 1) for key in ones[0]}
        for name, ones in taken.items()
    }
    return {"kept": {name: _kept(taken, name) for name in ("paced", "at_once")}, **rows}


def _kept(taken: dict[str, list[Json]], name: str) -> float:
    pairs = zip(taken[f"{name}_beside"], taken[f"{name}_alone"], strict=True)
    ratios = [float(beside["per_s"] / alone["per_s"]) for beside, alone in pairs]
    return round(statistics.median(ratios), 3)


def main() -> None:
    """Prints the table and writes the JSON."""
    given = arguments(
        __doc__, waiting=(200, "GPU pods"), pods=(400, "without GPUs, a round and way"), rounds=(3, "")
    )
    with ControlPlane(Options(node_lease_s=600)) as cp:
        bench = Bench(cp, cp.folder / "noop", NODES)
        with bench.extender("bursar") as (url, _):
            cp.start_scheduler("gpu-scheduler", profiles=(GPU_PROFILE,), extender_url=url)
            found = measured(World(bench), given.waiting, given.pods, given.rounds)
    for name, row in found.items():
        print(f"{name:>14}  " + "  ".join(f"{key} {value:8.2f}" for key, value in row.items()))
    write(given.json, {"waiting": given.waiting} | found)


if __name__ == "__main__":
    main()
