"""Another project's extender beside Bursar's, each with the requests and nodes of the other project.

``python -m tests.bench.peers --peer gas=PATH --nodes N --pods P --calls K --flight F --turns T --json FILE``.
PATH is the binary of Intel's GPU Aware Scheduling, built outside this repository. One API server holds N
nodes of 8 cards and P running pods as GAS leaves them. T times GAS, Bursar and Bursar as it is installed come
before it, by turns and one alone, with TLS and certificates on both sides.

A turn starts the extender and asks for a full node until it is refused: the first right answer. It filters
over all nodes, 2 K times more while nothing changes, and looks at the memory of all its processes; the names
come in another order each time, as from kube-scheduler. Then K pods one after another, and K more F at a
time, are each filtered over all nodes, prioritized where the extender has that verb, and bound to the best
node, else to any that fits. At last they are deleted. The table has the medians of the turns, and how many
times better than GAS they are.
"""

import http.client
import os
import random
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.identity import new_authority
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from deploy.local.scheduler import GPU_PROFILE
from tests.bench.command import arguments, started, write
from tests.bench.contestants import pss_kib
from tests.bench.extender import figures, rss_mib
from tests.bench.throughput import until
from tests.support.processor_time import family, running, spent_s
from tests.support.shape import installed, shape_of
from timekeeper.runtime.api_server import Api, accepted
from timekeeper.runtime.connect import connect

Json = dict[str, Any]

NAMESPACE = "team-a"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
FULL = "node-full"
CARDS = 8
MILLICORES = (100, 200, 250, 500)
STARTED = {"running": {"startedAt": "2026-11-20T04:33:00Z"}}
RUNNING = {
    "phase": "Running",
    "startTime": "2026-11-20T04:32:59Z",
    "containerStatuses": [
        {
            "name": "main",
            "image": "example/app:1",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": STARTED,
        }
    ],
}
NEW = {"labels": {"bench": "new"}}
NEW_PODS = f"{PODS}?labelSelector=bench%3Dnew&gracePeriodSeconds=0"
WAYS = ("GAS", "Bursar", "as installed")
CREATORS = 16
ANSWER_WITHIN_S = 500.0


def request(millicores: int, cards: int = 1) -> dict[str, str]:
    """What a container requests in GAS's dialect: so much in all, divided evenly among the cards."""
    return {"gpu.intel.com/i915": str(cards), "gpu.intel.com/millicores": str(millicores), "cpu": "1"}


WORKERS, CHUNK = 16, 70  # of kube-scheduler, with 5,000 nodes
ORDERS = 100


def orders_of(names: list[str]) -> list[list[str]]:
    """The names as kube-scheduler sends them: from where its last filter ended, and in the order in which its
    workers, with a chunk each, find that their nodes fit."""
    rng, orders = random.Random(3), []
    for _ in range(ORDERS):
        start = rng.randrange(len(names))
        places = ((at // (WORKERS * CHUNK), at % CHUNK + rng.random(), at) for at in range(len(names)))
        orders.append([names[(start + at) % len(names)] for _, _, at in sorted(places)])
    return orders


SIZES = (request(500), request(200), request(1_000), request(800), request(300), request(400, 2))


def node_of(name: str) -> Json:
    """A node as Intel's plugins leave it."""
    amounts = {"gpu.intel.com/i915": str(10 * CARDS), "gpu.intel.com/millicores": str(1_000 * CARDS)}
    labels = {"gpu.intel.com/gpu-numbers": ".".join(map(str, range(CARDS)))}
    return kwok_node(name, labels=labels, capacity=amounts)


def pod(name: str, requests: dict[str, str], metadata: Json) -> Json:
    """A waiting pod."""
    resources = {"limits": requests, "requests": requests}
    container = {"name": "main", "image": "example/app:1", "resources": resources}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", **metadata},
        "spec": {"schedulerName": GPU_PROFILE, "containers": [container]},
    }


def bound(name: str, node: str, card: int, millicores: int) -> Json:
    """A bound pod as GAS leaves it."""
    annotations = {"gas-container-cards": f"card{card}", "gas-ts": "1700000000000000000"}
    raw = pod(name, request(millicores), {"annotations": annotations})
    raw["spec"]["nodeName"] = node
    return raw


def bound_pods(nodes: int, count: int) -> Iterator[Json]:
    """So many pods at random wherever there is room, and at last those that fill one node."""
    rng = random.Random(1)
    free = {(at, card): 1_000 for at in range(nodes) for card in range(CARDS)}
    number = 0
    while number < count:
        place, millicores = (rng.randrange(nodes), rng.randrange(CARDS)), rng.choice(MILLICORES)
        if free[place] < millicores + 100:
            continue
        free[place] -= millicores
        yield bound(f"bound-{number}", f"node-{place[0]}", place[1], millicores)
        number += 1
    for card in range(CARDS):
        yield bound(f"full-{card}", FULL, card, 1_000)


@contextmanager
def cluster(names: list[str], pods: int) -> Iterator[tuple[ControlPlane, Api]]:
    """An API server with these nodes, one more that is full, and so many running pods. Beside it only etcd
    runs, so that nothing changes by itself."""
    with ControlPlane(Options(node_lease_s=3_600)) as cp:
        api = connect(cp.admin_kubeconfig, connections=CREATORS)
        create(api, "/api/v1/namespaces", [{"metadata": {"name": NAMESPACE}}])
        until(lambda: cp.api.answers(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"))
        cp.stop_process("kube-controller-manager")
        create(api, "/api/v1/nodes", map(node_of, [*names, FULL]))
        until(lambda: "conditions" in api.page(f"/api/v1/nodes/{FULL}")["status"])
        cp.stop_process("kwok")
        create(api, PODS, bound_pods(len(names), pods), RUNNING)
        yield cp, api


def create(api: Api, path: str, raws: Iterable[Json], status: Json | None = None) -> list[Json]:
    """What the API server has then, in the order given. It takes the status of a pod, which is the same for
    all, by a call of its own."""

    def made(raw: Json) -> Json:
        body = dict(accepted(api.call("POST", path, raw, timeout_s=LONGEST_S)))
        if status is None:
            return body
        of_status = f"{path}/{raw['metadata']['name']}/status"
        return dict(accepted(api.call("PUT", of_status, body | {"status": status}, timeout_s=LONGEST_S)))

    with ThreadPoolExecutor(CREATORS) as pool:
        return list(pool.map(made, raws))


@dataclass(frozen=True, slots=True)
class Contestant:
    """An extender that runs. ``prefix``: of the paths of its verbs; ``began``: when it was started."""

    process: subprocess.Popen[bytes]
    log: Path
    prefix: str
    prioritizes: bool
    port: int
    tls: ssl.SSLContext
    began: float

    def connection(self) -> http.client.HTTPSConnection:
        """It connects with the first call, and anew after it was closed."""
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=self.tls)

    def call(self, connection: http.client.HTTPSConnection, verb: str, body: Json) -> tuple[Any, float]:
        """The answer and its milliseconds. It is asked again while it takes no call, as before it listens, or
        breaks one off, as GAS does after 10 s."""
        data = orjson.dumps(body)
        began = time.monotonic()
        while True:
            try:
                connection.request(
                    "POST", f"{self.prefix}/{verb}", data, {"Content-Type": "application/json"}
                )
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if self.process.poll() is not None or time.monotonic() > began + ANSWER_WITHIN_S:
                    raise SystemExit(f"it does not answer: {self.log.read_text()[-2_000:]}") from None
                time.sleep(0.05)
                continue
            took = 1000 * (time.monotonic() - began)
            if response.status != 200:
                raise SystemExit(f"{self.log.stem}: {verb}: {response.status}: {answer[:300]!r}")
            return orjson.loads(answer), took

    def schedule(
        self, connection: http.client.HTTPSConnection, raw: Json, orders: list[list[str]], rng: random.Random
    ) -> float:
        """The milliseconds of the verbs for one pod, until it is bound."""
        total = 0.0
        for _ in range(20):
            asked = {"Pod": raw, "Nodes": None, "NodeNames": rng.choice(orders)}
            found, took = self.call(connection, "filter", asked)
            total += took
            fits = found["NodeNames"]
            if not fits:
                raise SystemExit(f"{raw['metadata']['name']} fits nowhere: {found.get('Error')}")
            best = rng.choice(fits)
            if self.prioritizes:
                ranked, took = self.call(connection, "prioritize", {**asked, "NodeNames": fits})
                total += took
                most = max(rank["Score"] for rank in ranked)
                best = rng.choice([rank["Host"] for rank in ranked if rank["Score"] == most])
            metadata = raw["metadata"]
            target = {"PodName": metadata["name"], "PodNamespace": NAMESPACE, "Node": best}
            result, took = self.call(connection, "bind", {**target, "PodUID": metadata["uid"]})
            total += took
            if not result["Error"]:
                return total
        raise SystemExit(f"{raw['metadata']['name']} could not be bound: {result['Error']}")


def commands(binary: Path, config: Path, folder: Path, port: int) -> dict[str, list[str]]:
    """How each of the ways is started."""
    files = {name: str(folder / name) for name in ("server.crt", "server.key", "ca.crt")}
    ours = [
        *(sys.executable, "-m", "scheduler_ext", f"--kubeconfig={config}", f"--listen=127.0.0.1:{port}"),
        *(f"--tls-cert={files['server.crt']}", f"--tls-key={files['server.key']}"),
        f"--client-ca={files['ca.crt']}",
    ]
    return {
        "GAS": [
            *(str(binary), f"--kubeConfig={config}", f"--port={port}", "--qps=1000", "--burst=1000"),
            *(f"--cert={files['server.crt']}", f"--key={files['server.key']}", f"--cacert={files['ca.crt']}"),
        ],
        "Bursar": ours,
        "as installed": [*ours, "--most-offered=16"],
    }


@contextmanager
def of_way(way: str, binary: Path, cp: ControlPlane, tls: ssl.SSLContext) -> Iterator[Contestant]:
    """The extender, which does not answer yet; Bursar's in its installed shape."""
    port, log = free_port(), cp.folder / f"{way}.log"
    command = commands(binary, cp.admin_kubeconfig, cp.folder / "tls", port)[way]
    is_ours, began = way != "GAS", time.monotonic()
    with (
        log.open("wb") as file,
        tempfile.TemporaryDirectory() as folder,
        installed(shape_of("extender"), Path(folder), cp.folder) as here,
        started([*(here.prefix if is_ours else ()), *command], file) as process,
    ):
        yield Contestant(process, log, "" if is_ours else "/scheduler", is_ours, port, tls, began)


def start(contestant: Contestant, names: list[str]) -> Json:
    """Until the full node is refused, and then over all nodes."""
    connection, wrong = contestant.connection(), 0
    asked = {"Pod": pod("probe", request(1_000), {}), "Nodes": None, "NodeNames": [FULL]}
    while True:
        found, _ = contestant.call(connection, "filter", asked)
        if any(FULL in (found.get(key) or {}) for key in ("FailedNodes", "FailedAndUnresolvableNodes")):
            break
        wrong += bool(found["NodeNames"])
        time.sleep(0.05)
    right_s = time.monotonic() - contestant.began
    seen = running()
    processor_s = spent_s(family(contestant.process.pid, seen), seen)
    contestant.call(connection, "filter", {**asked, "NodeNames": names})
    all_s = time.monotonic() - contestant.began
    connection.close()
    return {
        "start to the first right answer, s": right_s,
        "wrong answers before": wrong,
        "start to the end of the first filter, s": all_s,
        "processor until the first right answer, s": processor_s,
    }


def memory(pid: int) -> Json:
    """What the process and all below it hold now."""
    members = family(pid, running())
    return {
        "memory after the filters, PSS, MiB": sum(map(pss_kib, members)) / 1024,
        "memory after the filters, RSS, MiB": sum(map(rss_mib, members)),
    }


def alone(contestant: Contestant, orders: list[list[str]], calls: int) -> Json:
    """So many filters while nothing changes. The first of each size does not count."""
    connection, rng, times = contestant.connection(), random.Random(3), []
    for number in range(-len(SIZES), calls):
        raw = pod(f"alone-{number}", SIZES[number % len(SIZES)], {})
        asked = {"Pod": raw, "Nodes": None, "NodeNames": rng.choice(orders)}
        _, took = contestant.call(connection, "filter", asked)
        times.append(took)
    connection.close()
    parts = figures(times[len(SIZES) :])
    return {f"filter {part}, ms": parts[part] for part in ("p50", "p99")}


def one_by_one(contestant: Contestant, waiting: list[Json], orders: list[list[str]]) -> Json:
    """These pods one after another."""
    connection, rng = contestant.connection(), random.Random(2)
    total_ms = sum(contestant.schedule(connection, raw, orders, rng) for raw in waiting)
    connection.close()
    return {"pods/s, one by one": 1_000 * len(waiting) / total_ms}


def in_flight(contestant: Contestant, waiting: list[Json], orders: list[list[str]], flight: int) -> Json:
    """These pods, ``flight`` of them at a time, each on a connection of its own."""

    def run(part: list[Json]) -> None:
        rng, connection = random.Random(part[0]["metadata"]["name"]), contestant.connection()
        for raw in part:
            contestant.schedule(connection, raw, orders, rng)
        connection.close()

    parts = [waiting[at::flight] for at in range(min(flight, len(waiting)))]
    began = time.perf_counter()
    with ThreadPoolExecutor(flight) as pool:
        list(pool.map(run, parts))
    return {f"pods/s, {flight} in flight": len(waiting) / (time.perf_counter() - began)}


def turn(contestant: Contestant, api: Api, orders: list[list[str]], calls: int, flight: int) -> Json:
    """The figures of one extender from its start on. The pods that it binds are gone afterwards."""
    begun = start(contestant, orders[0])
    filters = alone(contestant, orders, 2 * calls)
    held = memory(contestant.process.pid)
    raws = (pod(f"new-{number}", SIZES[number % len(SIZES)], NEW) for number in range(2 * calls))
    waiting = create(api, PODS, raws)
    for raw in waiting:
        del raw["metadata"]["managedFields"]  # kube-scheduler does not keep them
    time.sleep(1)  # for the extender's watch
    pace = one_by_one(contestant, waiting[:calls], orders)
    pace |= in_flight(contestant, waiting[calls:], orders, flight)
    accepted(api.call("DELETE", NEW_PODS, timeout_s=LONGEST_S))
    return {key: round(number, 2) for key, number in (filters | pace | begun | held).items()}


def main() -> int:
    """Measure, print the table, write the JSON."""
    given = arguments(
        __doc__,
        peer=("", "gas=PATH, the binary of Intel's GPU Aware Scheduling"),
        nodes=(5_000, ""),
        pods=(40_000, ""),
        calls=(60, ""),
        flight=(16, "pods at once"),
        turns=(3, ""),
    )
    kind, _, path = given.peer.partition("=")
    if kind != "gas" or not os.access(path, os.X_OK):
        raise SystemExit(f"--peer: {given.peer!r} names no program; allowed: gas=PATH of a binary of GAS")
    names = [f"node-{at}" for at in range(given.nodes)]
    rows: dict[str, list[Json]] = {way: [] for way in WAYS}
    with cluster(names, given.pods) as (cp, api):
        tls, orders = certificates(cp.folder / "tls"), orders_of(names)
        for number in range(given.turns):
            for way in WAYS:
                with of_way(way, Path(path), cp, tls) as contestant:
                    row = turn(contestant, api, orders, given.calls, given.flight)
                rows[way].append(row)
                print(f"turn {number + 1} of {given.turns}: {way} {row}", file=sys.stderr, flush=True)
    print(f"{given.nodes} nodes x {CARDS} cards, {given.pods} bound pods")
    print(table(medians(rows)))
    write(given.json, {"nodes": given.nodes, "pods": given.pods, "turns": rows})
    return 0


def certificates(folder: Path) -> ssl.SSLContext:
    """A server's and a client's certificate in the folder, and how a client connects."""
    folder.mkdir()
    authority = new_authority("bench")
    (folder / "ca.crt").write_bytes(authority.pem)
    certificate, key = authority.leaf(["127.0.0.1"])
    (folder / "server.crt").write_bytes(certificate)
    (folder / "server.key").write_bytes(key)
    certificate, key = authority.leaf(["caller"], client=True)
    (folder / "client.pem").write_bytes(certificate + key)
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "client.pem")
    return context


def medians(rows: dict[str, list[Json]]) -> dict[str, Json]:
    """The median of each figure over a way's turns."""
    return {
        way: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for way, turns in rows.items()
    }


def table(rows: dict[str, Json]) -> str:
    """The figures for people; behind each of ours how many times better than GAS's it is."""
    theirs, *ours = rows
    lines = [f"{'':42}{theirs:>10}" + "".join(f"{way:>14}{'ratio':>8}" for way in ours)]
    for key, figure in rows[theirs].items():
        line = f"{key:42}{figure:>10.2f}"
        for way in ours:
            better = (rows[way][key], figure) if key.startswith("pods/s") else (figure, rows[way][key])
            ratio = f"{better[0] / better[1]:.2f}" if better[1] else ""
            line += f"{rows[way][key]:>14.2f}{ratio:>8}"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
