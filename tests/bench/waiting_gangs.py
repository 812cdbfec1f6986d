"""What gangs that wait cost the extender and the timekeeper: their CPU beside none, and its share of a core.

``python -m tests.bench.waiting_gangs [--nodes N] [--gangs G] [--size S] [--seconds T] [--json FILE]``. All of
Bursar on one control plane of this machine, with N kwok nodes of 4 cards, and S - 1 of 8. G gangs of S pods
with 8 cards each wait: S - 1 members of each would fit, so each plan places these first. Told is the CPU of
each role, in thousandths of a core, for T seconds before the gangs come and for T seconds while they wait,
and how many plans were asked for meanwhile. The gangs are old enough for drains.
"""

import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack, Tuning
from tests.bench.command import arguments, write
from tests.bench.throughput import CREATORS, cpu_s, until
from timekeeper.runtime.api_server import Answered
from timekeeper.runtime.connect import connect

Json = dict[str, Any]

LARGE, SMALL = 8, 4
ROLES = ("extender", "timekeeper")
PODS = "/api/v1/namespaces/bench/pods"
SETTLES_S = 20
TUNING = Tuning(flags=(("timekeeper", ("--gang-drain-after", "30s")),))


class Bench:
    """The cluster, and the gangs that wait there."""

    def __init__(self, stack: Stack, nodes: int, size: int) -> None:
        self._stack, self._size = stack, size
        self._api = connect(stack.cp.admin_kubeconfig, connections=CREATORS + 1)
        self.must("POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
        until(partial(stack.cp.api.answers, "/api/v1/namespaces/bench/serviceaccounts/default"))
        sizes = [LARGE if at < size - 1 else SMALL for at in range(nodes)]
        made = [kwok_node(f"node-{at:05d}", cards=cards) for at, cards in enumerate(sizes)]
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda node: self.must("POST", "/api/v1/nodes", node), made))

    def wait(self, gangs: int) -> None:
        """So many gangs come, and all are known to wait."""
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(self._create, range(gangs)))
        time.sleep(SETTLES_S)
        bound = [each for each in self.must("GET", PODS)["items"] if each["spec"].get("nodeName")]
        if bound:
            raise SystemExit(f"{len(bound)} pods were bound that are to wait")

    def _create(self, gang: int) -> None:
        marks = {"bursar.dev/gang": f"g{gang}", "bursar.dev/gang-size": str(self._size)}
        limits = {"limits": {"bursar.dev/gpu-count": str(LARGE)}}
        spec = {"containers": [{"name": "main", "image": "example/app:1", "resources": limits}]}
        for at in range(self._size):
            metadata = {"name": f"g{gang}-{at}", "annotations": marks}
            self.must("POST", PODS, {"metadata": metadata, "spec": spec})

    def cost(self, seconds: float) -> Json:
        """Thousandths of a core that each role takes for so long, and plans a minute."""
        began, cpu, plans = time.monotonic(), self._cpu(), self._plans()
        time.sleep(seconds)
        took, now = time.monotonic() - began, self._cpu()
        milli = {role: round(1000 * (now[role] - cpu[role]) / took, 1) for role in ROLES}
        return {"milli": milli, "plans_a_minute": round(60 * (self._plans() - plans) / took, 1)}

    def _cpu(self) -> Mapping[str, float]:
        return {role: cpu_s(self._stack.processes[role].pid) for role in ROLES}

    def _plans(self) -> int:
        return self._stack.log("timekeeper").count("event=gang-asked ")

    def must(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer of a call that has to succeed."""
        reply = self._api.call(method, path, body, timeout_s=60)
        if not isinstance(reply, Answered) or reply.status >= 300:
            raise SystemExit(f"{method} {path}: {reply}")
        return dict(reply.body)


def main() -> None:
    """Prints the figures and writes the JSON."""
    given = arguments(
        __doc__, nodes=(500, ""), gangs=(1_000, ""), size=(4, "pods"), seconds=(60, "each time")
    )
    with ControlPlane(Options(node_lease_s=600)) as cp, Stack(cp, TUNING) as stack:
        bench = Bench(stack, given.nodes, given.size)
        time.sleep(SETTLES_S)
        found: Json = {"without": bench.cost(given.seconds)}
        print(found, file=sys.stderr, flush=True)
        bench.wait(given.gangs)
        found["with"] = bench.cost(given.seconds)
    for role in ROLES:
        more = found["with"]["milli"][role] - found["without"]["milli"][role]
        found[f"{role}_more_milli"] = round(more, 1)
        print(f"{role:>10}  {found['without']['milli'][role]:7.1f} -> {found['with']['milli'][role]:7.1f}")
    print(f"{'plans':>10}  {found['with']['plans_a_minute']:7.1f} a minute")
    write(given.json, {"nodes": given.nodes, "gangs": given.gangs, "size": given.size} | found)


if __name__ == "__main__":
    main()
