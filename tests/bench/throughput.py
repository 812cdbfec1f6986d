"""Pods a second through a real kube-scheduler: without an extender, with one that does nothing, and with
ours.

``python -m tests.bench.throughput --nodes N --pods P --json FILE [--rounds R]``. On one control plane of this
machine N kwok nodes of 8 cards stand ready. In each round, and for each of them in turn, P pods that ask
for parts of cards are created while no scheduler runs; then kube-scheduler is started in the configuration
that we install, and a watch tells when each pod is bound. Told is the rate between the first tenth and the
last: ``{none, noop, bursar, bursar_all}``, pods a second, the median of the rounds. ``none`` has the same
configuration without the extender, so that kube-scheduler counts the same resources by itself; ``bursar``
offers 16 nodes, as it does where we install it, and ``bursar_all`` all. ``cpu_ms`` is what each process spent
on a pod meanwhile, for they all share the machine.
"""

import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from deploy.local.scheduler import GPU_PROFILE
from tests.bench.command import arguments, started, write
from tests.bench.contestants import compiled
from tests.support.shape import installed, shape_of
from timekeeper.edge.list_watch import watch
from timekeeper.edge.reflector import OPENED
from timekeeper.runtime.api_server import Answered, Api
from timekeeper.runtime.connect import connect

Json = dict[str, Any]

ROOT = Path(__file__).parent.parent.parent
NAMESPACE = "bench"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WAYS = ("none", "noop", "bursar", "bursar_all")
CARDS, MEMORY_MIB = 8, 81_920
LIMITS = (
    {"bursar.dev/gpu-percent": "50"},
    {"bursar.dev/gpu-percent": "25"},
    {"bursar.dev/gpu-memory": "20000"},
    {"bursar.dev/gpu-percent": "100"},
)
CREATORS = 8
WITHIN_S = 300.0


class Bench:
    """A control plane with nodes, and the pods of one round after another."""

    def __init__(self, cp: ControlPlane, program: Path, nodes: int) -> None:
        self.cp, self._program = cp, program
        self._api = connect(cp.admin_kubeconfig, connections=CREATORS + 1)
        self._created = 0
        self.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        until(lambda: cp.api.answers(account))
        made = [kwok_node(f"node-{at:05d}", cards=CARDS, memory_mib=MEMORY_MIB) for at in range(nodes)]
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda node: self.must("POST", "/api/v1/nodes", node), made))
        until(lambda: self._is_ready(made[-1]["metadata"]["name"]))

    def round(self, way: str, pods: int) -> Json:
        """The rate, and each process's CPU a pod, of one way."""
        with self.extender(way) as (url, extender):
            with ThreadPoolExecutor(CREATORS) as pool:
                list(pool.map(lambda _: self._create(), range(pods)))
            version = self.must("GET", f"{PODS}?limit=1")["metadata"]["resourceVersion"]
            self.cp.start_scheduler("gpu-scheduler", profiles=(GPU_PROFILE,), extender_url=url)
            try:
                return self._timed(version, pods, extender)
            finally:
                self.cp.stop_scheduler("gpu-scheduler")
                self.must("DELETE", f"{PODS}?gracePeriodSeconds=0")
                until(lambda: not self.must("GET", f"{PODS}?limit=1")["items"])

    def _timed(self, version: str, pods: int, extender: int) -> Json:
        first, last = pods // 10, pods - pods // 10
        times, spent = {}, {}
        for count, _ in enumerate(bindings_seen(self._api, version), start=1):
            if count in (first, last):
                times[count], spent[count] = time.monotonic(), self._spent_s(extender)
            if count == pods:
                break
        between = last - first
        cpu = {name: 1000 * (spent[last][name] - spent[first][name]) / between for name in spent[last]}
        return {
            "per_s": between / (times[last] - times[first]),
            "cpu_ms": {name: round(ms, 2) for name, ms in cpu.items()},
        }

    def _spent_s(self, extender: int) -> Mapping[str, float]:
        pids = {name: process.pid for name, process in self.cp.processes.items()}
        if extender:
            pids["extender"] = extender
        return {name: cpu_s(pid) for name, pid in pids.items()}

    @contextmanager
    def extender(self, way: str) -> Iterator[tuple[str | None, int]]:
        """The extender of this way, ready to be asked: its URL and its process; None and 0 where there is
        none."""
        if way == "none":
            yield None, 0
            return
        port = free_port()
        commands = {
            "noop": [
                *(str(self._program), f"-listen=127.0.0.1:{port}", f"-api={self.cp.url}"),
                *(f"-ca={self.cp.ca_file}", f"-token-file={self._token()}"),
            ],
            "bursar_all": [
                *(sys.executable, "-m", "scheduler_ext", f"--listen=127.0.0.1:{port}"),
                f"--kubeconfig={self.cp.admin_kubeconfig}",
            ],
        }
        commands["bursar"] = [*commands["bursar_all"], "--most-offered=16"]
        url = f"http://127.0.0.1:{port}"
        with (
            (self.cp.folder / f"{way}.log").open("wb") as log,
            tempfile.TemporaryDirectory() as folder,
            installed(shape_of("extender"), Path(folder), self.cp.folder) as here,
            started([*here.prefix, *commands[way]], log) as process,
        ):
            until(lambda: _fit_cache(f"{url}/readyz") or process.poll() is not None)
            until(lambda: way == "noop" or _leads(url) or process.poll() is not None)
            if process.poll() is not None:
                raise SystemExit((self.cp.folder / f"{way}.log").read_text())
            yield url, process.pid

    def _token(self) -> Path:
        path = self.cp.folder / "noop.token"
        path.write_text(self.cp.admin_token)
        return path

    def _create(self) -> None:
        self._created += 1
        resources = {"limits": LIMITS[self._created % len(LIMITS)], "requests": {"cpu": "100m"}}
        spec = {
            "schedulerName": GPU_PROFILE,
            "containers": [{"name": "main", "image": "example/app:1", "resources": resources}],
        }
        self.must("POST", PODS, {"metadata": {"generateName": "bench-"}, "spec": spec})

    def _is_ready(self, name: str) -> bool:
        node = self.must("GET", f"/api/v1/nodes/{name}")
        return any(each["type"] == "Ready" for each in node["status"].get("conditions", []))

    def must(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer of a call that has to succeed."""
        reply = self._api.call(method, path, body, timeout_s=LONGEST_S)
        if not isinstance(reply, Answered) or reply.status >= 300:
            raise SystemExit(f"{method} {path}: {reply}")
        return dict(reply.body)


def measured(bench: Bench, pods: int, rounds: int) -> Json:
    """The medians of all rounds."""
    taken: dict[str, list[Json]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS:
            one = bench.round(way, pods)
            print(f"round {number + 1} of {rounds}: {way} {one['per_s']:.0f}/s", file=sys.stderr, flush=True)
            taken[way].append(one)
    rates = {way: [one["per_s"] for one in ones] for way, ones in taken.items()}
    medians = {way: round(statistics.median(each), 1) for way, each in rates.items()}
    return {
        **medians,
        "of_noop": {
            way: round(statistics.median(_ratios(rates[way], rates["noop"])), 3)
            for way in ("bursar", "bursar_all")
        },
        "rounds": {way: [round(rate, 1) for rate in each] for way, each in rates.items()},
        "cpu_ms": {way: _median_cpu(ones) for way, ones in taken.items()},
    }


def _ratios(ours: list[float], others: list[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(ours, others, strict=True)]


def _median_cpu(ones: list[Json]) -> dict[str, float]:
    return {name: statistics.median(one["cpu_ms"][name] for one in ones) for name in ones[0]["cpu_ms"]}


def cpu_s(pid: int) -> float:
    """The CPU time that a process and its children have taken."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK") + sum(cpu_s(int(child)) for child in children)


def bindings_seen(api: Api, version: str) -> Iterator[str]:
    """The UID of each pod when it is bound, from this version on."""
    seen: set[str] = set()
    last = time.monotonic() + WITHIN_S
    while time.monotonic() < last:  # the API server may close a watch at any time
        for event in watch(api, PODS, version):
            if event["type"] == OPENED:
                continue
            pod = event["object"]
            version = pod["metadata"]["resourceVersion"]
            if pod.get("spec", {}).get("nodeName") and pod["metadata"]["uid"] not in seen:
                seen.add(pod["metadata"]["uid"])
                yield pod["metadata"]["uid"]
    raise SystemExit(f"only {len(seen)} pods were bound within {WITHIN_S:.0f} s")


def until(true: Callable[[], object]) -> None:
    """Wait until it holds."""
    last = time.monotonic() + WITHIN_S
    while not true():
        if time.monotonic() > last:
            raise SystemExit(f"the cluster was not ready within {WITHIN_S:.0f} s")
        time.sleep(0.05)


def _fit_cache(url: str) -> bool:
    """Any answer but a 503 will do: the one that does nothing has no such route."""
    try:
        urllib.request.urlopen(url, timeout=LONGEST_S).close()
    except urllib.error.HTTPError as error:
        return error.code == 404
    except OSError:
        return False
    return True


def _leads(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/metrics", timeout=LONGEST_S) as answer:
        return "bursar_extender_leads 1.0" in answer.read().decode()


def main() -> None:
    """Prints the table and writes the JSON."""
    given = arguments(__doc__, nodes=(500, ""), pods=(2_000, "a round and way"), rounds=(3, ""))
    with ControlPlane(Options(node_lease_s=600)) as cp:
        _, _ = compiled(cp.folder)
        found = measured(Bench(cp, cp.folder / "noop", given.nodes), given.pods, given.rounds)
    found = {"nodes": given.nodes, "pods": given.pods} | found
    for way in WAYS:
        costs = ", ".join(f"{name} {ms:.2f}" for name, ms in found["cpu_ms"][way].items())
        print(f"{way:>10}  {found[way]:7.1f} pods/s   CPU ms a pod: {costs}")
    ratios = ", ".join(f"{way} {ratio:.2f}" for way, ratio in found["of_noop"].items())
    print(f"ours, of the one that does nothing: {ratios}")
    write(given.json, found)


if __name__ == "__main__":
    main()
