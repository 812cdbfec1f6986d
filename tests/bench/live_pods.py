"""A cluster as the API server tells of it, for the benchmark of the settler."""

import json
from collections.abc import Iterator
from typing import Any

import orjson

from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import READ, T0, gpu_pod, lease, node, placement
from timekeeper.edge.reflector import ObjectsListed
from timekeeper.settler.cluster.cluster_state import Item, WatchUpdate

Json = dict[str, Any]

PODS_A_NODE = 20
ENTRY = "gpuHours: {}\nperiod: month\nonExhausted: deprioritize"


class Cluster:
    """So many pods of so many namespaces, as the API server tells of them: some 5 KB of JSON each."""

    def __init__(self, pods: int, namespaces: int, has_shares: bool = False) -> None:
        self.pods, self.namespaces, self.has_shares = pods, namespaces, has_shares
        self.nodes = -(-pods // PODS_A_NODE)
        raw = gpu_pod("NAME", namespace="TEAM", node="NODE", percent=25, bound_ms=T0, created_ms=T0)
        raw["metadata"]["labels"] = {"app": "training", "team": "TEAM"}
        raw["metadata"]["managedFields"] = [{"fieldsV1": {f"f:field-{n}": {"f:x": {}} for n in range(60)}}]
        raw["metadata"]["ownerReferences"] = [{"controller": True, "kind": "Job", "name": "job-TEAM"}]
        raw["spec"]["containers"][0]["env"] = [{"name": f"E{n}", "value": "x" * 40} for n in range(30)]
        self._bound = orjson.dumps(raw)
        began = {"name": "main", "state": {"running": {"startedAt": iso(T0 + 1000)}}}
        raw["status"] |= {"phase": "Running", "containerStatuses": [began]}
        self._running = orjson.dumps(raw)
        self._bytes_placed = json.dumps(placement(25, 0)).encode()[1:-1]

    def raw(self, at: int, running: bool) -> bytes:
        """One pod's JSON."""
        body = self._running if running else self._bound
        card = json.dumps(placement(25, at % PODS_A_NODE // 4)).encode()[1:-1]
        named = body.replace(self._bytes_placed, card).replace(b"NAME", b"pod-%06d-of-a-job" % at)
        return named.replace(b"TEAM", b"team-%04d" % (at % self.namespaces)).replace(
            b"NODE", b"node-%05d" % (at // PODS_A_NODE)
        )

    def read(self, at: int, running: bool) -> Item:
        """One pod as the watch reads it."""
        item = READ["pods"](orjson.loads(self.raw(at, running)))
        if item is None:
            raise SystemExit("the pod is not read as one that asks for GPUs")
        return item

    def budgets(self, hours: int) -> list[Json]:
        """ConfigMaps with an entry for each namespace; team-0000's is of so many hours."""
        entries = {f"team-{at:04d}": ENTRY.format(1000) for at in range(self.namespaces)}
        entries["team-0000"] = ENTRY.format(hours)
        entries |= {"_settings": "fairShare: on"} if self.has_shares else {}
        names = sorted(entries)
        parts = [names[start : start + 2000] for start in range(0, len(names), 2000)]
        return [
            {
                "metadata": {
                    "name": "bursar-budgets" if not at else f"budgets-{at}",
                    "uid": f"u{at}",
                    "labels": {"bursar.dev/budgets": "true"},
                },
                "data": {name: entries[name] for name in part},
            }
            for at, part in enumerate(parts)
        ]

    def lists(self, at_ms: int, pods: bool) -> Iterator[WatchUpdate]:
        """Everything there is, as after a start."""
        nodes = range(self.nodes)
        listed: dict[str, list[Json]] = {
            "nodes": [node(f"node-{at:05d}", cards=8) for at in nodes],
            "leases": [lease(at_ms, f"node-{at:05d}") for at in nodes],
            "configmaps": self.budgets(1000),
            "priorityclasses": [],
        }
        items = tuple(self.read(at, running=True) for at in range(self.pods)) if pods else ()
        yield WatchUpdate("pods", at_ms, ObjectsListed(items))
        for source, raws in listed.items():
            found = (READ[source](raw) for raw in raws)
            yield WatchUpdate(source, at_ms, ObjectsListed(tuple(each for each in found if each is not None)))
