"""Another project's extender beside Bursar's, each with the requests and nodes of the other project.

``python -m tests.bench.peers --peer gas=PATH --nodes N --pods P --calls K --flight F --json FILE``. PATH is
the binary of Intel's GPU Aware Scheduling, built outside this repository. Each of the two extenders runs
before a stand-in for the API server of its own, which holds N nodes of 8 cards and P bound pods as GAS leaves
them, and both speak TLS with certificates on both sides. K pods come one after another, by turns to the two:
each is filtered over all nodes, prioritized where the extender has that verb, and bound to the best node,
else to any that fits; so every call comes upon a cluster that has changed since the last. Then F pods at once
go the same way. ``start``: seconds from the start of the process until it refuses a full node; ``wrong``: how
often it offered that node before. ``cpu``: what the process spends on a filter when nothing changes.
"""

import http.client
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local.identity import new_authority
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.bench.command import arguments, write
from tests.bench.extender import ROOT, WARM_UP, Objects, body_of, cpu_ms, figures, pod, stand_in
from tests.support.kubeconfig import kubeconfig

Json = dict[str, Any]

FULL = "node-full"
CARDS = 8
MILLICORES = (100, 200, 250, 500)
START_WITHIN_S = 500.0


def request(millicores: int, cards: int = 1) -> dict[str, str]:
    """What a container requests in GAS's dialect: so much in all, divided evenly among the cards."""
    return {"gpu.intel.com/i915": str(cards), "gpu.intel.com/millicores": str(millicores), "cpu": "1"}


SIZES = (request(500), request(200), request(1_000), request(800), request(300), request(400, 2))


def node_of(name: str) -> Json:
    """A node as Intel's plugins leave it."""
    amounts = {"gpu.intel.com/i915": str(10 * CARDS), "gpu.intel.com/millicores": str(1_000 * CARDS)}
    capacity = {"cpu": "64", **amounts}
    labels = {"gpu.intel.com/gpu-numbers": ".".join(map(str, range(CARDS)))}
    return {
        "metadata": {"name": name, "resourceVersion": "1", "annotations": {}, "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def bound(name: str, node: str, card: int, millicores: int) -> Json:
    """A running pod as GAS leaves it."""
    raw = pod(name, request(millicores))
    raw["metadata"]["annotations"] = {"gas-container-cards": f"card{card}", "gas-ts": "1700000000000000000"}
    raw["spec"]["nodeName"] = node
    started = {"running": {"startedAt": "2026-11-20T04:33:00Z"}}
    raw["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": started}]}
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


def objects(nodes: int, pods: int) -> Objects:
    """What an API server holds, with one node more, which is full."""
    names = [f"node-{at}" for at in range(nodes)] + [FULL]
    return Objects(map(node_of, names), bound_pods(nodes, pods))


@dataclass
class Contestant:
    """An extender, its API server, and what was measured of it."""

    name: str
    prefix: str  # of the paths of its verbs
    prioritizes: bool
    port: int
    api_port: int
    pid: int  # of the process that answers
    tls: ssl.SSLContext
    start_s: float = 0.0
    wrong: int = 0  # offers of the full node before the first right answer
    times: dict[str, list[float]] = field(
        default_factory=lambda: {"filter": [], "prioritize": [], "bind": []}
    )
    per_s: dict[str, float] = field(default_factory=dict)

    def connect(self) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=self.tls)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def call(self, connection: http.client.HTTPSConnection, verb: str, body: Json) -> tuple[Any, float]:
        """The answer and its milliseconds."""
        data = body_of(body)
        began = time.perf_counter()
        connection.request("POST", f"{self.prefix}/{verb}", data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        took = 1000 * (time.perf_counter() - began)
        if response.status != 200:
            raise SystemExit(f"{self.name}: {verb} was answered with {response.status}: {answer[:300]!r}")
        return json.loads(answer), took

    def create(self, raw: Json) -> None:
        """The pod is in the API server, and the extender's watch has had a moment for it. ``raw`` becomes
        what the API server has: kube-scheduler sends that."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=LONGEST_S)
        connection.request("POST", "/api/v1/namespaces/team-a/pods", json.dumps(raw).encode())
        raw.update(json.loads(connection.getresponse().read()))
        connection.close()
        time.sleep(0.005)

    def schedule(
        self, connection: http.client.HTTPSConnection, raw: Json, names: list[str], rng: random.Random
    ) -> dict[str, float]:
        """The times of the verbs for one pod, until it is bound."""
        times = {"filter": 0.0, "prioritize": 0.0, "bind": 0.0}
        for _ in range(20):
            asked = {"Pod": raw, "Nodes": None, "NodeNames": names}
            found, took = self.call(connection, "filter", asked)
            times["filter"] += took
            fits = found["NodeNames"]
            if not fits:
                raise SystemExit(f"{self.name}: {raw['metadata']['name']} fits nowhere: {found.get('Error')}")
            best = rng.choice(fits)
            if self.prioritizes:
                ranked, took = self.call(connection, "prioritize", {**asked, "NodeNames": fits})
                times["prioritize"] += took
                most = max(each["Score"] for each in ranked)
                best = rng.choice([each["Host"] for each in ranked if each["Score"] == most])
            metadata = raw["metadata"]
            target = {"PodName": metadata["name"], "PodNamespace": "team-a", "Node": best}
            result, took = self.call(connection, "bind", {**target, "PodUID": metadata["uid"]})
            times["bind"] += took
            if not result["Error"]:
                return times
        raise SystemExit(f"{self.name}: {raw['metadata']['name']} could not be bound: {result['Error']}")


def commands(binary: Path, config: Path, folder: Path, port: int) -> dict[str, list[str]]:
    """How each of the two is started."""
    files = {each: str(folder / each) for each in ("server.crt", "server.key", "ca.crt")}
    return {
        "Bursar": [
            *(sys.executable, "-m", "scheduler_ext", f"--kubeconfig={config}"),
            f"--listen=127.0.0.1:{port}",
            *(f"--tls-cert={files['server.crt']}", f"--tls-key={files['server.key']}"),
            f"--client-ca={files['ca.crt']}",
        ],
        "GAS": [
            *(str(binary), f"--kubeConfig={config}", f"--port={port}", "--qps=1000", "--burst=1000"),
            *(f"--cert={files['server.crt']}", f"--key={files['server.key']}", f"--cacert={files['ca.crt']}"),
        ],
    }


@contextmanager
def started(
    name: str, binary: Path, folder: Path, tls: ssl.SSLContext, api_port: int
) -> Iterator[Contestant]:
    """The extender, once it refuses the full node."""
    port = free_port()
    own = folder / name
    own.mkdir()
    config = kubeconfig(own, f"http://127.0.0.1:{api_port}")
    began = time.monotonic()
    with (own / "log").open("wb") as log:
        process = subprocess.Popen(
            commands(binary, config, folder, port)[name],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        is_ours = name == "Bursar"
        made = Contestant(name, "" if is_ours else "/scheduler", is_ours, port, api_port, process.pid, tls)
        asked = {"Pod": pod("probe", request(1_000)), "Nodes": None, "NodeNames": [FULL]}
        while not _is_refused(made, asked):
            if process.poll() is not None or time.monotonic() > began + START_WITHIN_S:
                raise SystemExit(f"{name} did not start: {(own / 'log').read_text()[-2_000:]}")
            time.sleep(0.05)
        made.start_s = time.monotonic() - began
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        made.pid = int(children[0]) if children else process.pid
        yield made
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_refused(contestant: Contestant, asked: Json) -> bool:
    try:
        connection = contestant.connect()
    except OSError:
        return False
    try:
        found, _ = contestant.call(connection, "filter", asked)
    finally:
        connection.close()
    contestant.wrong += bool(found["NodeNames"])
    return any(FULL in (found.get(each) or {}) for each in ("FailedNodes", "FailedAndUnresolvableNodes"))


def by_turns(contestants: list[Contestant], names: list[str], calls: int) -> None:
    """So many pods for each, one after another."""
    rng = random.Random(2)
    connections = [each.connect() for each in contestants]
    for number in range(-WARM_UP, calls):
        for contestant, connection in zip(contestants, connections, strict=True):
            raw = pod(f"new-{number}", SIZES[number % len(SIZES)])
            contestant.create(raw)
            took = contestant.schedule(connection, raw, names, rng)
            if number >= 0:
                for verb, each in took.items():
                    contestant.times[verb].append(each)
    for contestant, connection in zip(contestants, connections, strict=True):
        connection.close()
        total_ms = sum(map(sum, contestant.times.values()))
        contestant.per_s["one"] = 1_000 * calls / total_ms


def at_once(contestant: Contestant, names: list[str], calls: int, flight: int) -> None:
    """So many pods, ``flight`` of them at a time, each on a connection of its own."""
    waiting = [pod(f"more-{number}", SIZES[number % len(SIZES)]) for number in range(calls)]
    for raw in waiting:
        contestant.create(raw)

    def run(part: list[Json]) -> None:
        rng, connection = random.Random(part[0]["metadata"]["name"]), contestant.connect()
        for raw in part:
            contestant.schedule(connection, raw, names, rng)
        connection.close()

    parts = [waiting[at::flight] for at in range(min(flight, calls))]
    began = time.perf_counter()
    with ThreadPoolExecutor(flight) as pool:
        list(pool.map(run, parts))
    contestant.per_s["at once"] = calls / (time.perf_counter() - began)


def cpu_of_filter(contestant: Contestant, names: list[str], calls: int) -> float:
    """CPU milliseconds of a filter, when nothing changes between two."""
    connection = contestant.connect()
    asked = {"Pod": pod("cpu", SIZES[0]), "Nodes": None, "NodeNames": names}
    before = cpu_ms(contestant.pid)
    for _ in range(calls):
        contestant.call(connection, "filter", asked)
    connection.close()
    return (cpu_ms(contestant.pid) - before) / calls


def row(contestant: Contestant, names: list[str], calls: int) -> Json:
    """The figures of one extender."""
    verbs = {verb: figures(each) for verb, each in contestant.times.items() if any(each)}
    return {
        "start_s": round(contestant.start_s, 1),
        "wrong": contestant.wrong,
        **{f"{verb} {part}": each[part] for verb, each in verbs.items() for part in ("p50", "p99")},
        "filter cpu": round(cpu_of_filter(contestant, names, calls), 2),
        **{f"pods/s, {how}": round(each, 1) for how, each in contestant.per_s.items()},
    }


def main() -> int:
    """Measure, print the table, write the JSON."""
    given = arguments(
        __doc__,
        peer=("", "gas=PATH, the binary of Intel's GPU Aware Scheduling"),
        nodes=(500, ""),
        pods=(1_000, ""),
        calls=(100, ""),
        flight=(16, "pods at once"),
    )
    kind, _, path = given.peer.partition("=")
    if kind != "gas" or not os.access(path, os.X_OK):
        raise SystemExit(f"--peer: {given.peer!r} names no program; allowed: gas=PATH of a binary of GAS")
    names = [f"node-{at}" for at in range(given.nodes)]
    with tempfile.TemporaryDirectory(prefix="bursar-bench-") as text:
        folder = Path(text)
        tls = certificates(folder)
        with (
            stand_in(objects(given.nodes, given.pods)) as first,
            started("Bursar", Path(path), folder, tls, first) as ours,
            stand_in(objects(given.nodes, given.pods)) as second,
            started("GAS", Path(path), folder, tls, second) as theirs,
        ):
            contestants = [ours, theirs]
            by_turns(contestants, names, given.calls)
            for each in contestants:
                at_once(each, names, given.calls, given.flight)
            rows = {each.name: row(each, names, given.calls) for each in contestants}
    print(table(rows, given.nodes, given.pods))
    write(given.json, {"nodes": given.nodes, "pods": given.pods, "rows": rows})
    return 0


def certificates(folder: Path) -> ssl.SSLContext:
    """A server's and a client's certificate in the folder, and how a client connects."""
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


def table(rows: dict[str, Json], nodes: int, pods: int) -> str:
    """The figures for people, and their ratio: Bursar's by the peer's."""
    lines = [f"{nodes} nodes x {CARDS} cards, {pods} bound pods; milliseconds, but for start (s) and pods/s"]
    lines.append(f"{'':20}" + "".join(f"{name:>10}" for name in rows) + f"{'ratio':>8}")
    ours, theirs = rows.values()
    for key in ours:
        figures_of = [ours[key], theirs.get(key, "")]
        ratio = f"{ours[key] / theirs[key]:.3f}" if theirs.get(key) else ""
        lines.append(f"{key:20}" + "".join(f"{each:>10}" for each in figures_of) + f"{ratio:>8}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
