"""A preemptor in front of a store of objects, moved step by step: its watch and its clock are turned by
hand."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.controllers.preemptor import Preemptor, PreemptorWiring
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pdb import NONE, PDBs, read_pdb
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.scoring.policy import BINPACK, Policy
from scheduler_ext.waiting.order import WaitingPod, waiting_pod
from tests.scheduler_ext.direct_api import DirectApi
from tests.scheduler_ext.reserving import NOW_MS, stamp
from tests.scheduler_ext.store import Store
from tests.scheduler_ext.worlds import percent
from tests.worlds import Json
from timekeeper.edge.events import EventType

DEBTOR = NamespaceStanding("OVER_BUDGET", "reclaim")
IN_BUDGET = NamespaceStanding("IN_BUDGET", "reclaim")
SCHEDULER = "bursar-scheduler"


def unscheduled(name: str, share: int, priority: int = 0, namespace: str = "team-a", **fields: Any) -> Json:
    """A waiting pod that kube-scheduler has tried without success."""
    raw = percent(share, name, priority=priority, schedulerName=SCHEDULER, **fields)
    raw["metadata"]["namespace"] = namespace
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    return {**raw, "status": {"phase": "Pending", "conditions": [condition]}}


def in_namespace(raw: Json, namespace: str, **labels: str) -> Json:
    """The pod in another namespace."""
    governed = {"bursar.dev/governed": "true"}
    return {**raw, "metadata": {**raw["metadata"], "namespace": namespace, "labels": governed | labels}}


def budget_over(namespace: str, allowed: int = 0) -> PDBs:
    """One PodDisruptionBudget over all pods of a namespace."""
    raw = {
        "metadata": {"namespace": namespace, "name": "keep"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": allowed},
    }
    return PDBs({namespace: (read_pdb(raw),)})


class Stage:
    """One replica and what it sees. ``offered``: the nodes that kube-scheduler has offered to each waiting
    pod; one that is not in it has never been sent to us, and of those in ``unasked`` the watch has told.
    ``preemptible``: the nodes that it passed to preempt; ``refused_s``: when all offered nodes refused the
    pods.
    ``look_s``: what it takes to look for one waiting pod."""

    def __init__(self, api: Store, most: int = 8, needs_standings: bool = False) -> None:
        self.api = api
        self.now_ms = NOW_MS
        self.standings = NamespaceStandings()
        self.pdbs = NONE
        self.leads = True
        self.offered: dict[str, list[str]] = {}
        self.unasked: set[str] = set()
        self.preemptible: dict[str, list[str]] = {}
        self.refused_s = 0.0
        self.look_s = 0.0
        self.rank_s = 0.0  # what it takes to rank one waiting pod among the others
        self.ranked = 0
        self._turned: NamespaceStandings | None = None
        self.told: list[tuple[str, str]] = []
        self.left: list[tuple[str, str, str, str]] = []  # victim, pod, kind, how
        self.warned: list[str] = []  # the texts of Warnings
        self.lines: list[str] = []
        self.freed: list[str] = []
        self.cache, self._seen = ClusterCache(lambda: self.now_ms, self.freed.extend), -1
        self._client, self._most, self._heeds = DirectApi(api), most, needs_standings
        self.preemptor = self._new()
        self.sees()

    def restarts(self) -> None:
        """Another replica takes over: it knows what the objects tell, and nothing else."""
        self.cache, self._seen = ClusterCache(lambda: self.now_ms, self.freed.extend), -1
        self.preemptor = self._new()
        self.sees()

    def sees(self) -> None:
        """The watch catches up: it shows removals, and then the pods that there are."""
        if self._seen == self.api.version:
            return
        self._seen = self.api.version
        there = [pod for raw in self.api.pods() if (pod := read_pod(raw)) is not None]
        uids = {pod.uid for pod in there}
        for gone in [pod for pod in self.cache.snapshot.pods.values() if pod.uid not in uids]:
            self.cache.pod_deleted(gone)
        self.cache.pods_listed(there)
        self.cache.nodes_listed(map(read_node, self.api.nodes()))

    def step(self, after_s: float = 0.1, times: int = 1) -> None:
        """Time passes, the watch catches up, and the preemptor acts; so many times."""
        for _ in range(times):
            self.now_ms += int(after_s * 1000)
            self.api.leaves_at = stamp(self.now_ms + 30_000)
            self.sees()
            self.cache.expire()
            if self.leads:
                self.preemptor.step()
        self.sees()

    def settles(self) -> None:
        """Long enough that a waiting pod is looked at."""
        self.step(times=12)

    def pod(self, name: str, namespace: str = "team-a") -> Pod:
        """As it is."""
        pod = read_pod(self.api.pod(name, namespace))
        assert pod is not None
        return pod

    def ends(self, name: str, namespace: str = "team-a") -> None:
        """The pod's containers have ended, and its object is gone."""
        raw = self.api.pod(name, namespace)
        self.api.put("pods", {**raw, "status": {"phase": "Failed"}})
        self.sees()
        self.api.delete("pods", name, namespace)
        self.sees()

    def asked(self) -> list[str]:
        """The names of those who were asked to leave, in order."""
        return [sent["metadata"]["name"] for sent in self.api.made("evict")]

    def going(self) -> list[str]:
        """The names of those whose objects say that they leave."""
        return sorted(
            raw["metadata"]["name"] for raw in self.api.pods() if "deletionTimestamp" in raw["metadata"]
        )

    def _new(self) -> Preemptor:
        caps = CapChecks(lambda: self.standings)
        world = PreemptorWiring(
            cache=self.cache,
            waiting_pods=self._waiting_pods,
            policy=self._policy,
            standings=self._standings,
            pdbs=lambda: self.pdbs,
            leads=lambda: self.leads,
            freed=self.freed.extend,
            tell=self._tell,
            log=lambda event, **fields: self.lines.append(f"{event} {fields}"),
            now_ms=lambda: self.now_ms,
            seconds=lambda: self.now_ms / 1000,
            is_capped=lambda pod, node: self._ranks(node) or caps.is_capped(pod, node, self.cache.snapshot),
            breathe=lambda _: None,
            evicted=lambda victim, pod, kind, how, _: self.left.append((victim.name, pod.name, kind, how)),
        )
        return Preemptor(
            self._client, world, PreemptionLimits(180_000, 600_000, self._most, SCHEDULER, self._heeds)
        )

    def _tell(self, pod: Pod, reason: str, text: str, event_type: EventType = "Normal", /) -> None:
        self.told.append((pod.name, reason))
        if event_type == "Warning":
            self.warned.append(text)

    def turns_after_evictions(self, standings: NamespaceStandings) -> None:
        """So the standings are as soon as anybody has been asked to leave."""
        self._turned = standings

    def _standings(self) -> NamespaceStandings:
        return self._turned if self._turned is not None and self.api.made("evict") else self.standings

    def _ranks(self, node: str) -> bool:
        if not node:
            self.ranked += 1
            self.now_ms += int(self.rank_s * 1000)
        return False

    def _policy(self, _: Pod) -> Policy:
        self.now_ms += int(self.look_s * 1000)
        return BINPACK

    def _waiting_pods(self) -> list[WaitingPod]:
        known = ((self.cache.snapshot.pods.get(f"uid-{name}"), nodes) for name, nodes in self.offered.items())
        unasked = (self.cache.snapshot.pods.get(f"uid-{name}") for name in self.unasked)
        told = [WaitingPod(pod, BINPACK, None, asked=False) for pod in unasked if pod is not None]
        offered = [
            replace(
                waiting_pod(pod, BINPACK, nodes),
                preemptible=frozenset(self.preemptible.get(pod.name, ())),
                refused_s=self.refused_s,
            )
            for pod, nodes in known
            if pod is not None and not pod.node
        ]
        return [*told, *offered]


def stage(
    *objects: Json,
    standings: NamespaceStandings | None = None,
    pdbs: PDBs = NONE,
    protected: Iterable[str] = (),
    offered: dict[str, list[str]] | None = None,
    **how: Any,
) -> Stage:
    """A stage on which these nodes and pods are, with what is known of them from the start. ``protected``:
    the pods that a PodDisruptionBudget keeps."""
    store = Store(protected=set(protected))
    for raw in objects:
        store.put("nodes" if "spec" not in raw or "containers" not in raw["spec"] else "pods", raw)
    world = Stage(store, **how)
    world.standings, world.pdbs = standings or NamespaceStandings(), pdbs
    world.offered = offered or {}
    return world
