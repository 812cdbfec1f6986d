"""How fast the extender answers, what that costs it, how soon it is ready, and how large it is.

``python -m tests.bench.extender --nodes N --cards 8 --pods P --json FILE [--calls K]``. A stand-in for the
API server, in a process of its own, holds N nodes and P bound pods of about 4 kB and takes Bindings; before
it runs a real ``python -m scheduler_ext``. K pods of eight shapes then come one after another, and each is
filtered over all nodes, prioritized over those that fit, and bound to the best, over one kept-alive
connection; so every call comes upon a cluster that has changed since the last one. Times in milliseconds as
the caller sees them; ``cpu`` is what the extender's process spends on a call when nothing changes;
``cold_start_s`` from the start of the process to its first 200 on /readyz.
"""

import http.client
import json
import multiprocessing
import os
import queue
import random
import socket
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonpatch

from deploy.local.limits import LONGEST_S
from tests.bench.command import arguments, started, write
from tests.support.http_server import JsonHandler
from tests.support.kubeconfig import kubeconfig
from tests.support.shape import installed, shape_of

Json = dict[str, Any]

ROOT = Path(__file__).parent.parent.parent
MEMORY_MIB = 81_920
PAGE = 500
WARM_UP = 20
SIZES: tuple[dict[str, str], ...] = (
    {"bursar.dev/gpu-percent": "50", "cpu": "4"},
    {"bursar.dev/gpu-percent": "20", "cpu": "2"},
    {"bursar.dev/gpu-count": "1", "cpu": "8"},
    {"bursar.dev/gpu-percent": "80", "cpu": "6"},
    {"bursar.dev/gpu-memory": "20000", "cpu": "3"},
    {"bursar.dev/gpu-percent": "30", "cpu": "3500m"},
    {"bursar.dev/gpu-count": "2", "cpu": "16"},
    {"bursar.dev/gpu-percent": "10", "cpu": "1"},
)
PADDING = [{"name": f"SETTING_{at}", "value": "x" * 60} for at in range(25)]


def node(name: str, cards: int) -> Json:
    """A node as our agent leaves it."""
    listed: list[Json] = [
        {
            "uuid": f"GPU-{name}-{at}",
            "index": at,
            "model": "NVIDIA H100 80GB HBM3",
            "memory_mib": MEMORY_MIB,
            "healthy": True,
            "numa": at // 4,
            "links": [],
            "mig": None,
        }
        for at in range(cards)
    ]
    amounts = {"bursar.dev/gpu-percent": str(100 * cards), "bursar.dev/gpu-memory": str(cards * MEMORY_MIB)}
    annotations = {"bursar.dev/inventory": json.dumps({"version": 1, "cards": listed})}
    return {
        "metadata": {"name": name, "resourceVersion": "1", "annotations": annotations},
        "status": {"capacity": {"cpu": "64", **amounts}, "allocatable": {"cpu": "64", **amounts}},
    }


def pod(name: str, limits: dict[str, str]) -> Json:
    """A waiting pod."""
    container = {
        "name": "main",
        "image": "example/app:1",
        "resources": {"limits": limits, "requests": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-11-20T04:32:53Z",
            "labels": {"app": "bench", "bursar.dev/governed": "true"},
            "annotations": {},
        },
        "spec": {
            "schedulerName": "bursar-scheduler",
            "priority": 0,
            "terminationGracePeriodSeconds": 30,
            "containers": [{**container, "env": PADDING}],
        },
        "status": {"phase": "Pending", "conditions": []},
    }


def bound_pods(nodes: int, cards: int, count: int, rng: random.Random) -> Iterator[Json]:
    """So many running pods, one in eight without a GPU, the others with shares of a card, at random wherever
    there is room."""
    free = {(at, card): 100 for at in range(nodes) for card in range(cards)}
    started = {"running": {"startedAt": "2026-11-20T04:33:00Z"}}
    for number in range(count):
        if number % 8 == 7:
            raw = pod(f"bound-{number}", {"cpu": rng.choice(("100m", "500m", "2"))})
            raw["spec"]["nodeName"] = f"node-{rng.randrange(nodes)}"
            yield raw | {"status": {"phase": "Running"}}
            continue
        percent = rng.choice((10, 20, 25, 50))
        at, card = _with_room(free, nodes, cards, percent, rng)
        free[at, card] -= percent
        raw = pod(f"bound-{number}", {"bursar.dev/gpu-percent": str(percent), "cpu": f"{80 * percent}m"})
        given = {"uuid": f"GPU-node-{at}-{card}", "index": card, "share_milli": 10 * percent}
        given["memory_mib"] = MEMORY_MIB * percent // 100
        raw["metadata"]["annotations"] = {
            "bursar.dev/devices": json.dumps({"version": 1, "containers": {"main": [given]}})
        }
        raw["spec"]["nodeName"] = f"node-{at}"
        raw["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": started}]}
        yield raw


def _with_room(
    free: dict[tuple[int, int], int], nodes: int, cards: int, percent: int, rng: random.Random
) -> tuple[int, int]:
    for _ in range(1_000):
        place = rng.randrange(nodes), rng.randrange(cards)
        if free[place] >= percent:
            return place
    raise SystemExit("these pods do not fit on these nodes: give more nodes or fewer pods")


class Objects:
    """The stand-in for the API server: lists from pages made beforehand, one watch a kind, Bindings."""

    def __init__(self, nodes: Iterator[Json], pods: Iterator[Json]) -> None:
        self.on_node: defaultdict[str, list[Json]] = defaultdict(list)
        items = {
            "nodes": [*map(_text, nodes)],
            "pods": [*map(_text, self._noted(pods))],
            "poddisruptionbudgets": [],
            "namespaces": [],
        }
        self.pages = {kind: _pages(texts) for kind, texts in items.items()}
        self.streamed = {kind: _initial_events(texts) for kind, texts in items.items()}
        self.news: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self.waiting: dict[str, Json] = {}
        self.version = 1

    def tell(self, raw: Json) -> None:
        """Send the pod down the watch, in its next version."""
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.waiting[raw["metadata"]["name"]] = raw
        self.news.put({"type": "MODIFIED", "object": raw})

    def _noted(self, pods: Iterator[Json]) -> Iterator[Json]:
        for each in pods:
            self.on_node[each["spec"]["nodeName"]].append(each)
            yield each

    def patch(self, name: str, change: Any) -> Json:
        """The pod after this JSON patch (a list) or merge patch of its annotations; the watch shows it."""
        raw: Json = json.loads(json.dumps(self.waiting[name]))
        if isinstance(change, list):
            raw = jsonpatch.apply_patch(raw, change)
        else:
            annotations = raw["metadata"]["annotations"] | change["metadata"].get("annotations", {})
            raw["metadata"]["annotations"] = {
                key: text for key, text in annotations.items() if text is not None
            }
        self.tell(raw)
        return raw

    def bind(self, name: str, binding: Json) -> None:
        """The pod is bound, and the watch shows it."""
        raw = json.loads(json.dumps(self.waiting.pop(name)))
        raw["spec"]["nodeName"] = binding["target"]["name"]
        raw["metadata"]["annotations"].update(binding["metadata"].get("annotations", {}))
        self.tell(raw)


def _text(item: Json) -> str:
    return json.dumps({"kind": "Thing", "apiVersion": "v1", **item}, separators=(",", ":"))


def _initial_events(texts: list[str]) -> list[bytes]:
    """The list as a watch sends it, some objects together."""
    events = [f'{{"type":"ADDED","object":{text}}}\n' for text in texts]
    end = '"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}'
    events.append(f'{{"type":"BOOKMARK","object":{{"metadata":{{{end}}}}}}}\n')
    return ["".join(events[at : at + 16]).encode() for at in range(0, len(events), 16)]


def _pages(texts: list[str]) -> list[bytes]:
    chunks = [texts[at : at + PAGE] for at in range(0, len(texts), PAGE)] or [[]]
    return [
        json.dumps({"metadata": {"resourceVersion": "1", "continue": _next(at, chunks)}}).encode()[:-1]
        + b',"items":['
        + ",".join(chunk).encode()
        + b"]}"
        for at, chunk in enumerate(chunks)
    ]


def _next(at: int, chunks: list[list[str]]) -> str:
    return str(at + 1) if at + 1 < len(chunks) else ""


def serve(objects: Objects, listener: socket.socket) -> None:
    """Answer until killed."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            kind = url.path.rpartition("/")[2]
            if kind not in objects.pages and kind not in objects.waiting:
                self.answer(404, {"kind": "Status", "code": 404})
            elif "sendInitialEvents" in query:
                self._initial_events(kind)
            elif "watch" in query:
                self._watch(kind)
            elif "fieldSelector" in query:
                name = query["fieldSelector"][0].partition(",")[0].removeprefix("spec.nodeName=")
                self.answer(200, {"metadata": {"resourceVersion": "1"}, "items": objects.on_node[name]})
            elif "/namespaces/" in url.path:
                self.answer(200, objects.waiting[kind])
            else:
                self.answer(200, objects.pages[kind][int(query.get("continue", ["0"])[0])])

        def do_POST(self) -> None:
            body = self.body()
            if self.path.endswith("/binding"):
                objects.bind(self.path.split("/")[6], body)
                self.answer(201, b"{}")
            else:
                objects.tell(body)
                self.answer(201, body)

        def do_PATCH(self) -> None:
            self.answer(200, objects.patch(self.path.split("/")[6], self.body()))

        def _initial_events(self, kind: str) -> None:
            self.begin_stream()
            for page in objects.streamed[kind]:
                self.chunk(page)
            self.chunk(b"")

        def _watch(self, kind: str) -> None:
            self.begin_stream()
            while True:
                self.event(objects.news.get() if kind == "pods" else threading.Event().wait())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.daemon_threads = True
    server.socket.close()
    server.socket = listener
    server.server_activate()
    server.serve_forever()


class Connection:
    """One kept-alive connection; each call gives its answer and its milliseconds."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_S)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes, float]:
        """Status, body, milliseconds."""
        began = time.perf_counter()
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        data = response.read()
        return response.status, data, 1000 * (time.perf_counter() - began)

    def close(self) -> None:
        """End it."""
        self._connection.close()


Call = Callable[[str, bytes], tuple[bytes, float]]


def body_of(content: Json) -> bytes:
    """The body of a call, without spaces as kube-scheduler writes it."""
    return json.dumps(content, separators=(",", ":")).encode()


def scheduled(
    call: Call, create: Callable[[Json], None], names: list[str], calls: int
) -> dict[str, list[float]]:
    """Filter, prioritize and bind so many pods, one after another; the times of each verb."""
    times: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}
    for number in range(-WARM_UP, calls):
        raw = pod(f"new-{number}", SIZES[number % len(SIZES)])
        create(raw)
        asked = {"Pod": raw, "Nodes": None, "NodeNames": names}
        data, took = call("/filter", body_of(asked))
        fits = json.loads(data)["NodeNames"]
        ranked, took_ranking = call("/prioritize", body_of({**asked, "NodeNames": fits}))
        best = max(json.loads(ranked), key=lambda each: each["Score"])["Host"]
        order = {"PodName": raw["metadata"]["name"], "PodNamespace": "team-a", "Node": best}
        bound, took_binding = call("/bind", body_of({**order, "PodUID": raw["metadata"]["uid"]}))
        if json.loads(bound)["Error"]:
            raise SystemExit(f"a bind was answered with {bound!r}")
        if number >= 0:
            for verb, each in (("filter", took), ("prioritize", took_ranking), ("bind", took_binding)):
                times[verb].append(each)
    return times


def cpu_ms(pid: int) -> float:
    """What the process has spent so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of(call: Call, path: str, body: bytes, pid: int, calls: int) -> float:
    """CPU of one call, when nothing changes between two."""
    before = cpu_ms(pid)
    for _ in range(calls):
        call(path, body)
    return round((cpu_ms(pid) - before) / calls, 2)


def figures(times: list[float]) -> dict[str, float]:
    """p50, p95 and p99."""
    ordered = sorted(times)
    return {
        f"p{part}": round(ordered[min(len(ordered) - 1, len(ordered) * part // 100)], 2)
        for part in (50, 95, 99)
    }


@contextmanager
def stand_in(objects: Objects) -> Iterator[int]:
    """The stand-in for the API server, ready to answer; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    process = multiprocessing.get_context("fork").Process(target=serve, args=(objects, listener), daemon=True)
    process.start()
    port: int = listener.getsockname()[1]
    listener.close()
    try:
        yield port
    finally:
        process.kill()
        process.join()


@contextmanager
def extender(api_port: int, folder: Path) -> Iterator[tuple[int, int, float]]:
    """A real extender before it, as installed; its port, the process id of its worker, and how long its
    start took."""
    config = kubeconfig(folder, f"http://127.0.0.1:{api_port}")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    flags = [f"--kubeconfig={config}", f"--listen=127.0.0.1:{port}"]
    began = time.perf_counter()
    with (
        installed(shape_of("extender"), folder) as here,
        (folder / "log").open("wb") as log,
        started([*here.prefix, sys.executable, "-m", "scheduler_ext", *flags], log) as process,
    ):
        while not _ready(port):
            if process.poll() is not None:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield port, int(children[0]), seconds


def _ready(port: int) -> bool:
    try:
        connection = Connection(port)
    except OSError:
        return False
    with_status = connection.call("GET", "/readyz")
    connection.close()
    return with_status[0] == 200


def rss_mib(pid: int) -> float:
    """Resident memory of the process now."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


def over_http(api_port: int, port: int, pid: int, names: list[str], calls: int) -> Json:
    """The figures as kube-scheduler would see them."""
    api, connection = Connection(api_port), Connection(port)

    def create(raw: Json) -> None:
        _, created, _ = api.call("POST", "/api/v1/namespaces/team-a/pods", json.dumps(raw).encode())
        raw.update(json.loads(created))

    def call(path: str, body: bytes) -> tuple[bytes, float]:
        status, data, took = connection.call("POST", path, body)
        if status != 200:
            raise SystemExit(f"{path} was answered with {status}: {data[:300]!r}")
        return data, took

    times = scheduled(call, create, names, calls)
    asked = body_of({"Pod": pod("cpu", SIZES[0]), "Nodes": None, "NodeNames": names})
    rows = {verb: figures(each) for verb, each in times.items()}
    for verb in ("filter", "prioritize"):
        rows[verb]["cpu"] = cpu_of(call, f"/{verb}", asked, pid, calls)
    return rows


def table(found: Json) -> str:
    """The figures for people."""
    lines = [
        f"{found['nodes']} nodes x {found['cards']} cards, {found['pods']} bound pods; milliseconds",
        f"{'':24}{'p50':>8}{'p95':>8}{'p99':>8}{'cpu':>8}",
    ]
    for verb in ("filter", "prioritize", "bind"):
        row = found[verb]
        lines.append(f"{verb:24}" + "".join(f"{row.get(key, ''):>8}" for key in ("p50", "p95", "p99", "cpu")))
    lines.append(f"cold start {found['cold_start_s']} s, resident memory {found['rss_mib']} MiB")
    return "\n".join(lines)


def main() -> int:
    """Measure, print the table, write the JSON."""
    given = arguments(__doc__, nodes=(500, ""), cards=(8, ""), pods=(1_000, ""), calls=(500, ""))
    names = [f"node-{at}" for at in range(given.nodes)]
    found: Json = {"nodes": given.nodes, "cards": given.cards, "pods": given.pods}
    rng = random.Random(1)
    objects = Objects(
        (node(name, given.cards) for name in names), bound_pods(given.nodes, given.cards, given.pods, rng)
    )
    with tempfile.TemporaryDirectory(prefix="bursar-bench-") as text:
        folder = Path(text)
        with (
            stand_in(objects) as api_port,
            extender(api_port, folder) as (port, pid, seconds),
        ):
            found |= over_http(api_port, port, pid, names, given.calls)
            found |= {"cold_start_s": round(seconds, 2), "rss_mib": rss_mib(pid)}
    print(table(found))
    write(given.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
