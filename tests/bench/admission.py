"""What webhooks add to the creation of a GPU pod, through the real API server: ours beside a minimal one in
Go.

``python -m tests.bench.admission [--pods N] [--rounds N] [--json FILE]``. In one run, on one control plane:
the same pod is created with no webhook, with the Go one registered as such a webhook is (mutating alone),
with the Go one registered as ours is (mutating with re-invocation, and validating), and with ours as it is
installed; by 1, 8 and 32 creators, and in three sizes. Webhooks are reached by a Service, for with a
localhost URL an API server may speak otherwise. The pods wait behind a scheduling gate of the benchmark's
own. Times are milliseconds of one POST as its client sees it; the rows of all rounds are taken in turn, and
the median of each is told.
"""

import base64
import json
import sys
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from tests.bench import pods
from tests.bench.command import arguments
from tests.bench.contestants import Contestant, Load, compiled, minimal_go, ours
from tests.bench.table import FIGURES, medians, tell
from tests.support.simulated_timekeeper import SimulatedTimekeeper, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.webhook.servers import ROOT

Json = dict[str, Any]

MANIFESTS = ROOT / "deploy" / "manifests"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}
SERVICES = {"Go": "bench-go", "Go, our patch": "bench-go-patched", "Bursar": "bursar-webhook"}
LABELS = {"": set[str](), "Go": {"bench.bursar.dev/seen"}}  # what a pod carries that the webhook has seen
NAMESPACE, OURS = "bench", "bursar-system"
WARM_UP = 100
COLUMNS = {
    "pod": ("size", ""),
    "creators": ("creators", "d"),
    "webhook": ("way", ""),
    "creates/s": ("per_s", ".0f"),
    "p50 ms": ("p50_ms", ".2f"),
    "p99 ms": ("p99_ms", ".2f"),
    "added p50": ("added_p50_ms", ".2f"),
    "CPU us": ("cpu_us", ".0f"),
}

# what a run is: the size of its pods, how many create them at once, and by what the number of pods is
# divided: etcd keeps 2 GiB of what was written in the last minutes
RUNS = (("10 KB", 1, 1), ("10 KB", 8, 1), ("10 KB", 32, 1), ("84 KB", 1, 8), ("100 containers", 1, 8))


@dataclass(frozen=True, slots=True)
class Way:
    """A way to create pods: its name in the table, the webhook that is called, and which of its routes."""

    name: str
    webhook: str = ""
    routes: tuple[str, ...] = ()


WAYS = (
    Way("no webhook"),
    Way("Go, mutating", "Go", ("/mutate",)),
    Way("Go, as ours", "Go", ("/mutate", "/validate")),
    Way("Go, our patch", "Go, our patch", ("/mutate", "/validate")),
    Way("Bursar", "Bursar", ("/mutate", "/validate")),
)


class Cluster:
    """The control plane with our priority classes, and a Service for each webhook."""

    def __init__(self, cp: ControlPlane, tls: Tls, contestants: Iterable[Contestant]) -> None:
        self.cp, self.tls = cp, tls
        self.contestants = {each.name: each for each in contestants}
        for namespace in (NAMESPACE, OURS):
            self.cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        eventually(lambda: cp.api.answers(account), "the account of the namespace")
        self.cp.kubectl("apply", "--server-side", "-f", str(MANIFESTS / "priority-classes.yaml"))
        for name in SERVICES.values():
            spec = {"type": "ExternalName", "externalName": "127.0.0.1"}
            path = f"/api/v1/namespaces/{OURS}/services"
            self.cp.api.call("POST", path, {"metadata": {"name": name}, "spec": spec})

    def go(self, way: Way, pod: Json) -> None:
        """Registers what the way needs for such a pod, and waits until the API server asks it for each, and
        once."""
        if way.webhook == "Go, our patch":
            self._ask(way.webhook, "/patch", self._our_patch(pod))
        for resource in KINDS.values():
            self.cp.api.call("DELETE", f"{CONFIGURATIONS}/{resource}")
        for document in self._configurations(way):
            self.cp.api.call("POST", f"{CONFIGURATIONS}/{KINDS[document['kind']]}", document)
        labels = {"app"} | LABELS.get(way.webhook, {"bursar.dev/governed"})

        def is_acted_on() -> bool:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
            try:
                made = self.cp.api.call("POST", path, pod)
            except ApiError:
                return False  # the one that checks is asked already, and the one that governs not yet
            return labels == set(made["metadata"]["labels"])

        eventually(is_acted_on, f"{way.name} to be acted on")

    def _our_patch(self, pod: Json) -> bytes:
        response = json.loads(self._ask("Bursar", "/mutate", pods.review(pod)))["response"]
        return base64.b64decode(response["patch"])

    def _ask(self, webhook: str, path: str, body: bytes) -> bytes:
        url = f"https://127.0.0.1:{self.contestants[webhook].port}{path}"
        with urllib.request.urlopen(url, body, context=self.tls.client()) as answer:
            text: bytes = answer.read()
        return text

    def _configurations(self, way: Way) -> Iterable[Json]:
        if not way.webhook:
            return
        contestant = self.contestants[way.webhook]
        text = (MANIFESTS / "webhook-configurations.yaml").read_text()
        for document in yaml.safe_load_all(text):
            document["webhooks"] = [
                each for each in document["webhooks"] if each["clientConfig"]["service"]["path"] in way.routes
            ]
            for each in document["webhooks"]:
                service = each["clientConfig"]["service"]
                service |= {"name": SERVICES[way.webhook], "namespace": OURS, "port": contestant.port}
                each["clientConfig"]["caBundle"] = base64.b64encode(self.tls.ca.bundle).decode()
                if len(way.routes) == 1:
                    each["reinvocationPolicy"] = "Never"
            if document["webhooks"]:
                yield document

    def clear(self) -> None:
        """Deletes the pods."""
        self.cp.api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods")


def measured(cluster: Cluster, load: Load, count: int, rounds: int) -> list[Json]:
    """A row for each run and way."""
    bodies = {}
    for name, shape in pods.SIZES.items():
        bodies[name] = pods.written(*shape)
    taken: dict[tuple[str, int, str], list[Json]] = {}
    for number in range(1, rounds + 1):
        for size, creators, divisor in RUNS:
            print(f"round {number} of {rounds}: {size}, {creators} at once", file=sys.stderr, flush=True)
            for way in WAYS:
                cluster.go(way, bodies[size])
                taken.setdefault((size, creators, way.name), []).append(
                    _one(cluster, load, way, bodies[size], creators, count // divisor)
                )
    return _rows(taken)


def _one(cluster: Cluster, load: Load, way: Way, pod: Json, creators: int, count: int) -> Json:
    cp, contestant = cluster.cp, cluster.contestants.get(way.webhook)
    body = cp.folder / "pod.json"
    body.write_text(json.dumps(pod))
    url = f"{cp.url}/api/v1/namespaces/{NAMESPACE}/pods"
    token = cp.admin_token
    load.run(url, cp.ca_file, body, creators, WARM_UP, token, 201)
    before = contestant.cpu_s() if contestant else 0.0
    figures = load.run(url, cp.ca_file, body, creators, count, token, 201)
    spent_s = contestant.cpu_s() - before if contestant else 0.0
    cluster.clear()
    return figures | {"cpu_us": 1e6 * spent_s / (count + creators)}


def _rows(taken: dict[tuple[str, int, str], list[Json]]) -> list[Json]:
    rows = []
    for (size, creators, way), rounds in taken.items():
        without = taken[size, creators, WAYS[0].name]
        compared = [
            one | {"added_p50_ms": one["p50_ms"] - other["p50_ms"]}
            for one, other in zip(rounds, without, strict=True)
        ]
        row = {"size": size, "creators": creators, "way": way}
        rows.append(row | medians(compared, (*FIGURES, "added_p50_ms")))
    return rows


def main() -> None:
    """Prints the table and writes the JSON."""
    given = arguments(
        __doc__, pods=(800, "creations a row and round, of large pods an eighth"), rounds=(3, "")
    )
    with ControlPlane() as cp:
        folder = cp.folder
        load, program = compiled(folder)
        tls = Tls(folder / "tls", names=tuple(f"{each}.{OURS}.svc" for each in SERVICES.values()))
        with (
            SimulatedTimekeeper(tls, standings(seen())) as timekeeper,
            minimal_go(program, tls, folder) as go,
            minimal_go(program, tls, folder, "Go, our patch") as patched,
            ours(tls, timekeeper.url, folder) as bursar,
        ):
            cluster = Cluster(cp, tls, (go, patched, bursar))
            rows = measured(cluster, load, given.pods, given.rounds)
            memory = {each.name: each.pss_mib() for each in (go, bursar)}
    tell(rows, COLUMNS, memory, given.json)


def seen() -> Json:
    """What the timekeeper tells of the classes that the manifests make."""
    return {
        "priorityClasses": {
            "inBudget": {
                "name": "gpu-default-priority",
                "value": 0,
                "preemptionPolicy": "PreemptLowerPriority",
            },
            "overBudget": {"name": "gpu-lower-priority", "value": -5, "preemptionPolicy": "Never"},
        }
    }


if __name__ == "__main__":
    main()
