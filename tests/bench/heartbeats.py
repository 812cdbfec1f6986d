"""How many heartbeats a second one timekeeper takes, from real pods with real bound tokens, over verified
TLS.

``python tests/bench/heartbeats.py [--pods N] [--seconds S] [--json FILE]``. On kept-alive connections, and
with a new TLS connection for each. The senders share the machine's cores with the timekeeper, the API server
and etcd.
"""

import argparse
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from deploy.local.cluster import ControlPlane
from deploy.local.nodes import kwok_node
from deploy.local.stack import Stack, Tuning

Json = dict[str, Any]
SENDERS = 8


class Pod:
    """One pod's sidecar, as far as the timekeeper can tell."""

    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._sequence = 0

    def beat(self, connection: http.client.HTTPSConnection) -> float:
        """One heartbeat; how long it took, in milliseconds. Exits where it is not taken."""
        self._sequence += 1
        body = {
            "version": 1,
            "boot": "bench",
            "sequence": self._sequence,
            "beats": [{"age_ms": 0, "devices": []}],
        }
        began = time.perf_counter()
        connection.request("POST", "/v1/heartbeats", json.dumps(body), self._headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise SystemExit(f"a heartbeat was answered with {response.status}: {text[:200]!r}")
        return 1000 * (time.perf_counter() - began)


def start_pods(stack: Stack, count: int) -> list[Pod]:
    """Pods that run, with a session in the ledger each."""
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("bench", cards=16))
    limits = {"bursar.dev/gpu-percent": "1"}
    spec = {"containers": [{"name": "main", "image": "example/app:1", "resources": {"limits": limits}}]}
    pods = "/api/v1/namespaces/default/pods"
    for at in range(count):
        stack.cp.api.call("POST", pods, {"metadata": {"name": f"p{at}"}, "spec": spec})
    stack.wait("the sessions", lambda: stack.log("timekeeper").count("session opened") == count, within_s=120)
    listed = stack.cp.api.call("GET", pods)["items"]
    return [Pod(stack.token("default", "default", audience="bursar", pod=pod)) for pod in listed]


class Senders:
    """Threads that beat for a while, each for its share of the pods."""

    def __init__(self, stack: Stack, pods: list[Pod], kept_alive: bool) -> None:
        self._stack, self._pods, self._kept_alive = stack, pods, kept_alive
        self._times_ms: list[float] = []
        self._lock = threading.Lock()

    def run(self, seconds: float) -> Json:
        """Beats a second, p50 and p99 in milliseconds."""
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._send, args=(self._pods[n::SENDERS], until)) for n in range(SENDERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ordered = sorted(self._times_ms)
        return {
            "kept_alive": self._kept_alive,
            "beats_per_s": round(len(ordered) / seconds, 1),
            "p50": round(ordered[len(ordered) // 2], 2),
            "p99": round(ordered[int(len(ordered) * 0.99)], 2),
        }

    def _send(self, pods: list[Pod], until: float) -> None:
        connection, times = self._connect(), []
        while time.monotonic() < until:
            for pod in pods:
                times.append(pod.beat(connection))
                if not self._kept_alive:
                    connection.close()
                    connection = self._connect()
        with self._lock:
            self._times_ms += times

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = self._stack.timekeeper_url.removeprefix("https://").split(":")
        return http.client.HTTPSConnection(host, int(port), context=self._stack.tls_context(), timeout=10)


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=64, help="pods that beat (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="how long each row is measured (%(default)s)"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    with ControlPlane() as cp, Stack(cp, Tuning(timekeeper_workers=2)) as stack:
        pods = start_pods(stack, arguments.pods)
        Senders(stack, pods, kept_alive=True).run(1)
        rows = [Senders(stack, pods, kept_alive).run(arguments.seconds) for kept_alive in (True, False)]
    print(f"{'connections':<14}{'beats/s':>10}{'p50 ms':>9}{'p99 ms':>9}")
    for row in rows:
        name = "kept alive" if row["kept_alive"] else "a new one each"
        print(f"{name:<14}{row['beats_per_s']:>10}{row['p50']:>9}{row['p99']:>9}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"pods": arguments.pods, "senders": SENDERS, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
