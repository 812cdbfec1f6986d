"""How fast the extender binds through a real API server, and how long taking over takes before the first one.

``python -m tests.bench.binding --pods N --json FILE``: N pods of 10 % wait when the extender starts, so that
it touches each of them; then they are bound, eight calls at a time, as kube-scheduler would ask.
``{pods, ready_s, takeover_s, bind_per_s, bind_ms: {p50, p95, p99}, cpu_ms: {extender, apiserver, etcd}}``;
``cpu_ms`` of each bind.
"""

import http.client
import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from tests.bench.command import arguments, write
from tests.scheduler_ext.processes import Process
from tests.support.shape import installed, shape_of

AT_ONCE = 8
CARDS = 8
PODS = "/api/v1/namespaces/default/pods"


def measure(pods: int) -> dict[str, Any]:
    """One run on a control plane of its own."""
    with (
        ControlPlane() as plane,
        tempfile.TemporaryDirectory() as folder,
        installed(shape_of("extender"), Path(folder), plane.folder) as here,
    ):
        nodes = [f"n{at}" for at in range(pods // (10 * CARDS) + 1)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(
                pool.map(
                    lambda name: plane.api.call("POST", "/api/v1/nodes", kwok_node(name, cards=CARDS)), nodes
                )
            )
            made = list(pool.map(lambda at: _waiting(plane, at), range(pods)))
        process = Process(Path(folder), f"--kubeconfig={plane.admin_kubeconfig}", prefix=here.prefix)
        begun = time.monotonic()
        process.start()
        try:
            process.ready()
            ready = time.monotonic()
            while "event=leads" not in process.said():
                time.sleep(0.01)
            leads = time.monotonic()
            measured = {
                "extender": process.pids(),
                "apiserver": [plane.processes["kube-apiserver"].pid],
                "etcd": [plane.processes["etcd"].pid],
            }
            before = {name: _cpu_ms(pids) for name, pids in measured.items()}
            spans = _bind(process, made, nodes)
            used = {name: round((_cpu_ms(p) - before[name]) / pods, 2) for name, p in measured.items()}
        finally:
            process.kill()
    seconds = max(end for _, end in spans) - min(start for start, _ in spans)
    lasted = sorted(1000 * (end - start) for start, end in spans)
    quantiles = {f"p{q}": round(lasted[len(lasted) * q // 100], 1) for q in (50, 95, 99)}
    return {
        "pods": pods,
        "ready_s": round(ready - begun, 2),
        "takeover_s": round(leads - ready, 2),
        "bind_per_s": round(pods / seconds),
        "bind_ms": quantiles,
        "cpu_ms": used,
    }


def _cpu_ms(pids: Sequence[int]) -> float:
    """What these processes have used so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(1000 * (int(each[11]) + int(each[12])) / os.sysconf("SC_CLK_TCK") for each in fields)


def _waiting(plane: ControlPlane, at: int) -> tuple[str, str]:
    limits = {"bursar.dev/gpu-percent": "10"}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    body = {"metadata": {"name": f"p{at}"}, "spec": {"schedulerName": "nobody", "containers": [container]}}
    metadata = plane.api.call("POST", PODS, body)["metadata"]
    return metadata["name"], metadata["uid"]


def _bind(
    process: Process, pods: Sequence[tuple[str, str]], nodes: Sequence[str]
) -> list[tuple[float, float]]:
    """When each call began and ended; every pod must be bound."""

    own = threading.local()

    def bind(at: int) -> tuple[float, float]:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=LONGEST_S)
        name, uid = pods[at]
        order = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": nodes[at % len(nodes)]}
        begun = time.monotonic()
        own.connection.request("POST", "/bind", json.dumps(order))
        response = own.connection.getresponse()
        answer = json.loads(response.read())
        assert (response.status, answer["Error"]) == (200, ""), answer
        return begun, time.monotonic()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(bind, range(len(pods))))


def main() -> None:
    """Measures, prints, and writes JSON where it is told to."""
    given = arguments(__doc__, pods=(1_000, ""))
    found = measure(given.pods)
    print(json.dumps(found))
    write(given.json, found)


if __name__ == "__main__":
    main()
