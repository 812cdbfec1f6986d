"""Held pods that are released on a live cluster, beside pods of others that kube-scheduler places; and how
soon the first eviction follows a standing.

``python -m tests.bench.releases [--held N] [--others P] [--rounds R] [--json FILE]``. All of Bursar and
kube-scheduler with its extender on one control plane of this machine, with kwok nodes. N pods are created
behind the gate. In each round P pods of another namespace are created while kube-scheduler stands still, and
then placed twice: once while nothing is released, and once while the budget of the held ones allows them.
Told are ``others_per_s`` between the first tenth bound and the last, of each way, the median ``ratio`` of
the rounds, and ``released_per_s`` of all that is left at the end, with ``released_s``, how long that took,
and ``of_ten_thousand_s``, the time of 10,000 at this rate. ``evicted_ms``: from the standing's change to the
first eviction, without a grace.
"""

import re
import signal
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.kwok_nodes import kwok_node
from deploy.local.scheduler import GPU_PROFILE
from deploy.local.stack import Stack, Tuning
from tests.bench.command import arguments, write
from tests.bench.throughput import CREATORS, bindings_seen, until
from timekeeper.runtime.api_server import Answered
from timekeeper.runtime.connect import connect

Json = dict[str, Any]

CARDS = 8
PODS_A_CARD = 10
LOOKAHEAD_H = 1 / 6
WITHIN_S = 900.0
OTHERS = "/api/v1/namespaces/others/pods"
CONFIG_MAPS = "/api/v1/namespaces/bursar-system/configmaps"
LIMITS = {"bursar.dev/gpu-percent": "10"}


class Bench:
    """The cluster, its held pods, and those of others."""

    def __init__(self, stack: Stack, pods: int) -> None:
        self.stack = stack
        self._api = connect(stack.cp.admin_kubeconfig, connections=CREATORS + 1)
        self._created = self._read = self._released = 0
        for name in ("held", "others", "spent"):
            self.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            until(partial(stack.cp.api.answers, account))
        nodes = -(-pods // (CARDS * PODS_A_CARD)) + 1
        made = [kwok_node(f"node-{at:05d}", cards=CARDS) for at in range(nodes)]
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda node: self.must("POST", "/api/v1/nodes", node), made))
        self.must("POST", CONFIG_MAPS, self._budgets("0"))

    def _budgets(self, held: str, spent: str = "100") -> Json:
        data = {
            "_settings": "evictGrace: 0s\nevictRate: 600\n",
            "held": f"gpuHours: {held}\nonExhausted: hold\n",
            "spent": f"gpuHours: {spent}\nonExhausted: evict\n",
        }
        return {"metadata": {"name": "bursar-budgets"}, "data": data}

    def budget(self, held: str, spent: str = "100") -> None:
        """The GPU-hours of the namespaces; that of the others has none to keep."""
        self.must("PUT", f"{CONFIG_MAPS}/bursar-budgets", self._budgets(held, spent))

    def create(self, namespace: str, number: int) -> None:
        """So many pods of a tenth of a card."""
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda _: self._create(namespace), range(number)))

    def _create(self, namespace: str, more: str = "") -> Json:
        self._created += 1
        spec = {
            "schedulerName": GPU_PROFILE,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "example/app:1", "resources": {"limits": LIMITS}}],
        }
        metadata = {"name": f"p{self._created:06d}"}
        path = f"/api/v1/namespaces/{namespace}/pods{more}"
        return self.must("POST", path, {"metadata": metadata, "spec": spec})

    def wait_until_held(self) -> None:
        """Every worker of the webhook holds."""

        def is_held(_: int) -> bool:
            return "schedulingGates" in self._create("held", "?dryRun=All")["spec"]

        def all_hold() -> bool:
            with ThreadPoolExecutor(CREATORS) as pool:
                return all(pool.map(is_held, range(24)))

        until(all_hold)
        until(all_hold)

    def place_others(self, number: int, releasing: bool) -> float:
        """Create so many others while kube-scheduler gets no processor, and let it place them; pods a second
        between the first tenth and the last. Releases begin before."""
        scheduler = self.stack.cp.processes["gpu-scheduler"]
        if releasing:
            before = self.released()
            self.budget("unlimited")
            until(lambda: self.released() > before)
        scheduler.send_signal(signal.SIGSTOP)
        self.create("others", number)
        version = self.must("GET", f"{OTHERS}?limit=1")["metadata"]["resourceVersion"]
        scheduler.send_signal(signal.SIGCONT)
        first, last = number // 10, number - number // 10
        times: dict[int, float] = {}
        for count, _ in enumerate(bindings_seen(self._api, version, OTHERS, WITHIN_S), start=1):
            times[count] = time.monotonic()
            if count == number:
                break
        self.budget("0")
        self.must("DELETE", f"{OTHERS}?gracePeriodSeconds=0")
        until(lambda: not self.must("GET", f"{OTHERS}?limit=1")["items"])
        return (last - first) / (times[last] - times[first])

    def released(self) -> int:
        """How many pods the timekeeper has released so far, by its log, of which each line is read once."""
        with self.stack.log_file("timekeeper").open("rb") as log:
            log.seek(self._read)
            whole, end, _ = log.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        found = [line for line in whole.splitlines() if b"event=pod-release " in line]
        self._released += sum(b"result=released" in line for line in found)
        return self._released

    def lines(self, event: str, text: str) -> list[str]:
        """Lines of the timekeeper's log."""
        found = self.stack.log("timekeeper").splitlines()
        return [line for line in found if f"event={event} " in line and text in line]

    def must(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer of a call that has to succeed."""
        reply = self._api.call(method, path, body, timeout_s=60)
        if not isinstance(reply, Answered) or reply.status >= 300:
            raise SystemExit(f"{method} {path}: {reply}")
        return dict(reply.body)


def measured(bench: Bench, held: int, others: int, rounds: int) -> Json:
    """All figures."""
    bench.wait_until_held()
    bench.create("held", held)
    alone: list[float] = []
    beside: list[float] = []
    for number in range(rounds):
        for releasing in (False, True):
            before = bench.released()
            rate = bench.place_others(others, releasing)
            (beside if releasing else alone).append(rate)
            more = bench.released() - before
            print(f"round {number + 1}: {rate:.0f}/s, {more} released", file=sys.stderr, flush=True)
    before, begun = bench.released(), time.monotonic()
    bench.budget("unlimited")
    until(lambda: bench.released() >= held)
    took_s = time.monotonic() - begun
    per_s = (held - before) / took_s
    return {
        "others_per_s": {"alone": alone, "beside": beside},
        "ratio": round(
            statistics.median(mine / theirs for mine, theirs in zip(beside, alone, strict=True)), 3
        ),
        "released": held - before,
        "released_s": round(took_s),
        "released_per_s": round(per_s, 1),
        "of_ten_thousand_s": round(10_000 / per_s),
        "evicted_ms": [evicted_ms(bench) for _ in range(rounds)],
    }


def evicted_ms(bench: Bench) -> int:
    """From the standing's change to the first eviction, by the timekeeper's log."""
    done = len(bench.lines("budget-eviction", "result=evicted"))
    bench.budget("unlimited", spent="100")
    until(lambda: "schedulingGates" not in bench._create("spent", "?dryRun=All")["spec"])
    bench.create("spent", 1)
    running = "/api/v1/namespaces/spent/pods?fieldSelector=status.phase=Running"
    until(lambda: bench.must("GET", running)["items"])
    bench.budget("unlimited", spent="0")
    until(lambda: len(bench.lines("budget-eviction", "result=evicted")) > done)
    changed = bench.lines("standing-changed", "namespace=spent now=OVER_BUDGET")[-1]
    evicted = bench.lines("budget-eviction", "result=evicted")[-1]
    return round(1000 * (_at(evicted) - _at(changed)))


def _at(line: str) -> float:
    found = re.match(r"time=(\S+)", line)
    assert found is not None
    return datetime.fromisoformat(found[1]).timestamp()


def main() -> None:
    """Prints the figures and writes the JSON."""
    given = arguments(__doc__, held=(10_000, ""), others=(400, "a round and way"), rounds=(3, ""))
    with ControlPlane(Options(node_lease_s=600)) as cp, Stack(cp, Tuning()) as stack:
        bench = Bench(stack, given.held + given.others)
        found = {"held": given.held, "others": given.others}
        found |= measured(bench, given.held, given.others, given.rounds)
    print(found)
    write(given.json, found)


if __name__ == "__main__":
    main()
