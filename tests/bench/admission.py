"""What the webhook adds to the creation of a GPU pod, through the real API server, and the memory of each
process.

``python tests/bench/admission.py [--pods N] [--json FILE]``. In one run, on one control plane: creations of
the same GPU pod without Bursar's webhook configurations and with them, by 1 and by 8 creators. The pods wait
behind a scheduling gate of the benchmark's own, so that no scheduler takes part. Times are milliseconds of
one POST as its client sees it.
"""

import argparse
import http.client
import json
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from deploy.local.cluster import ControlPlane
from deploy.local.stack import Stack

Json = dict[str, Any]
WARM_UP = 50


def pod(namespace: str) -> Json:
    """A half-card pod that no scheduler touches."""
    limits = {"bursar.dev/gpu-percent": "50"}
    return {
        "metadata": {"generateName": "bench-", "namespace": namespace},
        "spec": {
            "schedulingGates": [{"name": "example.com/bench"}],
            "containers": [{"name": "main", "image": "example/app:1", "resources": {"limits": limits}}],
        },
    }


class Creators:
    """N connections that create pods until the count is reached; their times together."""

    def __init__(self, cp: ControlPlane, namespace: str, creators: int) -> None:
        self._cp, self._namespace, self._creators = cp, namespace, creators
        self._times_ms: list[float] = []
        self._lock = threading.Lock()

    def run(self, count: int) -> Json:
        """Creates ``count`` pods and returns count, seconds, creations per second, p50 and p99."""
        began = time.perf_counter()
        threads = [
            threading.Thread(target=self._create, args=(count // self._creators,))
            for _ in range(self._creators)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._figures(time.perf_counter() - began)

    def _create(self, count: int) -> None:
        host, port = self._cp.url.removeprefix("https://").split(":")
        connection = http.client.HTTPSConnection(host, int(port), context=_trusting(self._cp))
        headers = {"Authorization": f"Bearer {self._cp.admin_token}", "Content-Type": "application/json"}
        body = json.dumps(pod(self._namespace))
        for _ in range(count):
            began = time.perf_counter()
            connection.request("POST", f"/api/v1/namespaces/{self._namespace}/pods", body, headers)
            response = connection.getresponse()
            text = response.read()
            took_ms = 1000 * (time.perf_counter() - began)
            if response.status != 201:
                raise SystemExit(f"a creation was answered with {response.status}: {text[:300]!r}")
            with self._lock:
                self._times_ms.append(took_ms)

    def _figures(self, seconds: float) -> Json:
        ordered = sorted(self._times_ms)
        return {
            "count": len(ordered),
            "per_s": round(len(ordered) / seconds, 1),
            "p50": round(ordered[len(ordered) // 2], 2),
            "p99": round(ordered[int(len(ordered) * 0.99)], 2),
        }


def _trusting(cp: ControlPlane) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(cp.ca_file))


def measure(cp: ControlPlane, stack: Stack, pods: int) -> list[Json]:
    """The rows: with and without, 1 and 8 creators; the configurations are taken away and put back in
    between."""
    rows: list[Json] = []
    for creators in (1, 8):
        for governed in (True, False, True, False):
            namespace = f"bench-{creators}-{len(rows)}"
            cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            stack.wait(f"namespace {namespace}", lambda n=namespace: _has_account(stack, n))  # type: ignore[misc]
            with_webhook(stack, governed)
            Creators(cp, namespace, 1).run(WARM_UP)
            rows.append(
                {"webhook": governed, "creators": creators, **Creators(cp, namespace, creators).run(pods)}
            )
            cp.api.call("DELETE", f"/api/v1/namespaces/{namespace}/pods")
    return rows


def _has_account(stack: Stack, namespace: str) -> bool:
    return stack.exists(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")


def with_webhook(stack: Stack, governed: bool) -> None:
    """Installs or removes our webhook configurations and waits until the API server acts on it."""
    if governed:
        stack.install_webhooks()
    else:
        stack.remove_webhooks()

    def acts() -> bool:
        answer = stack.cp.api.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod("default"))
        return ("bursar.dev/governed" in answer["metadata"].get("labels", {})) is governed

    stack.wait("the webhook configurations to be acted on", acts)


def memory_mib(stack: Stack) -> dict[str, float]:
    """Proportional set size of each role with its children, MiB."""
    return {
        role: round(sum(map(_pss_kib, _family(process.pid))) / 1024, 1)
        for role, process in stack.processes.items()
    }


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in _family(int(child)))]


def _pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=800, help="creations a row (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    with ControlPlane() as cp, Stack(cp) as stack:
        rows = measure(cp, stack, arguments.pods)
        memory = memory_mib(stack)
    print(f"{'webhook':<9}{'creators':>9}{'creates/s':>11}{'p50 ms':>9}{'p99 ms':>9}")
    for row in rows:
        figures = f"{row['creators']:>9}{row['per_s']:>11}{row['p50']:>9}{row['p99']:>9}"
        print(f"{'yes' if row['webhook'] else 'no':<9}{figures}")
    print("memory (PSS, MiB): " + ", ".join(f"{role} {figure}" for role, figure in memory.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "memory_mib": memory}, indent=1))


if __name__ == "__main__":
    main()
