"""How fast gangs start that come at once, beside as many single pods, through a real kube-scheduler.

``python -m tests.bench.gang_starts [--nodes N] [--gangs G] [--size S] [--rounds R] [--json FILE]``. All of
Bursar and kube-scheduler with its extender on one control plane of this machine, with N kwok nodes of 8
cards. In each round G x S single pods with a card each are created at once, and then G gangs of S of them.
Told are pods a second from the first creation to the last binding, ``whole_s``: seconds until the last gang
was whole, and ``ratio``: gangs beside single pods; the medians of the rounds.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.bench.command import arguments, write
from tests.bench.throughput import CREATORS, bindings_seen, until
from timekeeper.runtime.api_server import Answered
from timekeeper.runtime.connect import connect

Json = dict[str, Any]

CARDS = 8
WITHIN_S = 900.0
NAMESPACE = "bench"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Bench:
    """The cluster, and the pods of one round after another."""

    def __init__(self, stack: Stack, nodes: int) -> None:
        self._api = connect(stack.cp.admin_kubeconfig, connections=CREATORS + 1)
        self.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        until(partial(stack.cp.api.answers, account))
        made = [kwok_node(f"node-{at:05d}", cards=CARDS) for at in range(nodes)]
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda node: self.must("POST", "/api/v1/nodes", node), made))
        self._started = 0

    def start(self, gangs: int, size: int, *, together: bool) -> float:
        """Seconds from the first creation to the last binding."""
        self._started += 1
        version = self.must("GET", f"{PODS}?limit=1")["metadata"]["resourceVersion"]
        began = time.monotonic()
        with ThreadPoolExecutor(CREATORS) as pool:
            done = pool.map(
                partial(self.must, "POST", PODS), pods(f"r{self._started}", gangs, size, together)
            )
            for count, _ in enumerate(bindings_seen(self._api, version, PODS, WITHIN_S), start=1):
                if count == gangs * size:
                    break
            took = time.monotonic() - began
            list(done)  # raises what a creation has raised
        self.must("DELETE", f"{PODS}?gracePeriodSeconds=0")
        until(lambda: not self.must("GET", f"{PODS}?limit=1")["items"])
        return took

    def must(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer of a call that has to succeed."""
        reply = self._api.call(method, path, body, timeout_s=60)
        if not isinstance(reply, Answered) or reply.status >= 300:
            raise SystemExit(f"{method} {path}: {reply}")
        return dict(reply.body)


def pods(prefix: str, gangs: int, size: int, together: bool) -> Iterator[Json]:
    """The pods in the order of their creation, those of a gang one after another."""
    resources = {"limits": {"bursar.dev/gpu-percent": "100"}}
    spec = {"containers": [{"name": "main", "image": "example/app:1", "resources": resources}]}
    for gang in range(gangs):
        marks = {"bursar.dev/gang": f"{prefix}-{gang}", "bursar.dev/gang-size": str(size)}
        for at in range(size):
            metadata: Json = {"name": f"{prefix}-{gang}-{at}"}
            if together:
                metadata["annotations"] = marks
            yield {"metadata": metadata, "spec": {**spec, "terminationGracePeriodSeconds": 0}}


def measured(bench: Bench, gangs: int, size: int, rounds: int) -> Json:
    """The medians of all rounds."""
    taken: dict[str, list[float]] = {"single": [], "gangs": []}
    for number in range(rounds):
        for name, each in taken.items():
            each.append(bench.start(gangs, size, together=name == "gangs"))
            said = f"round {number + 1} of {rounds}: {name} {gangs * size / each[-1]:.1f}/s"
            print(said, file=sys.stderr, flush=True)
    ratios = [single / whole for single, whole in zip(taken["single"], taken["gangs"], strict=True)]
    return {
        "single_per_s": round(gangs * size / statistics.median(taken["single"]), 1),
        "gangs_per_s": round(gangs * size / statistics.median(taken["gangs"]), 1),
        "whole_s": round(statistics.median(taken["gangs"]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "rounds_s": {name: [round(each, 1) for each in ones] for name, ones in taken.items()},
    }


def main() -> None:
    """Prints the figures and writes the JSON."""
    given = arguments(__doc__, nodes=(500, ""), gangs=(64, ""), size=(8, "pods"), rounds=(3, ""))
    with ControlPlane(Options(node_lease_s=600)) as cp, Stack(cp) as stack:
        found = measured(Bench(stack, given.nodes), given.gangs, given.size, given.rounds)
    for name, figure in found.items():
        print(f"{name:>14}  {figure}")
    write(given.json, {"nodes": given.nodes, "gangs": given.gangs, "size": given.size} | found)


if __name__ == "__main__":
    main()
