"""The extender in a simulated cluster: its snapshot, search, scores, caps and preemptor, called in the order
in which kube-scheduler tries pods."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.controllers.preemptor import Preemptor, PreemptorWiring
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import Node
from scheduler_ext.model.pdb import PDBs, read_pdb
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.model.standing_table import Table, standings_at
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.reports.decision_reports import DecisionReports, WaitingState
from scheduler_ext.scoring.selection import Policies, for_fits
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.verbs.fit_cache import FitCache, fit_key
from scheduler_ext.waiting.order import ANYWHERE, WaitingPod, queue_key, waiting_pod
from tests.story.pods import PodServer, SimPod, Workload
from timekeeper.core.decisions import Decision
from timekeeper.core.values import Placement

STALE_AFTER_MS = 30_000
LIMITS = PreemptionLimits(
    patience_ms=60_000, pdb_grace_ms=600_000, most=8, scheduler="bursar-scheduler", needs_standings=True
)
SUB_STEP_MS = 1_500  # between two steps of the preemptor


@dataclass(frozen=True)
class Binding:
    """A pod was bound."""

    pod: SimPod
    at_ms: int
    was_reserved: bool


@dataclass
class Extender:
    """``clock``: milliseconds since 1970."""

    server: PodServer
    clock: Callable[[], int]
    nodes: tuple[Node, ...]
    workloads: list[Workload]
    decisions: list[Decision] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    table: Table | None = None
    reasons: dict[str, str] = field(default_factory=dict)  # UID of a waiting pod -> why: budget, cap, room

    def __post_init__(self) -> None:
        self._standings: tuple[object, int, NamespaceStandings] = (None, 0, UNHEARD)
        covered = [each for each in self.workloads if each.protects]
        self._pdbs = PDBs({name: tuple(_pdb(e) for e in covered if e.namespace == name) for name in
                           {each.namespace for each in covered}})  # fmt: skip
        self.names = [each.name for each in self.nodes]
        self.restart()

    def restart(self) -> None:
        """Another replica takes over: it lists everything, and knows nothing else."""
        self.cache = ClusterCache(self.clock, lambda _nodes: None)
        self.cache.nodes_listed(self.nodes)
        self.cache.pods_listed([each.for_extender() for each in self.server.pods.values()])
        self.caps = CapChecks(self.standings)
        self.policies = Policies("binpack", self.standings, lambda: None, lambda _sentence: None)
        self._fits, self._waiting = FitCache(), list[WaitingPod]()
        state = WaitingState(
            lambda: self.cache.snapshot,
            lambda: self._waiting,
            lambda _uid: None,
            self.standings,
            self.caps,
        )
        reports = DecisionReports(self.decisions.append, state, self.clock)
        self.preemptor = Preemptor(cast(Any, self.server), self._wiring(reports), LIMITS)

    def _wiring(self, reports: DecisionReports) -> PreemptorWiring:
        return PreemptorWiring(
            cache=self.cache,
            waiting_pods=lambda: self._waiting,
            policy=self.policies,
            standings=self.standings,
            pdbs=lambda: self._pdbs,
            leads=lambda: True,
            freed=lambda _nodes: None,
            tell=lambda *_: None,
            log=lambda *_, **__: None,
            now_ms=self.clock,
            seconds=lambda: self.clock() / 1000,
            breathe=lambda _s: None,
            evicted=reports.evicted,
            is_capped=lambda pod, node: self.caps.is_capped(pod, node, self.cache.snapshot),
        )

    def standings(self) -> NamespaceStandings:
        """The standings now."""
        table, now_ms, known = self._standings
        if table is not self.table or now_ms != self.clock():
            now = standings_at(self.table, self.clock(), STALE_AFTER_MS)
            known = known if now == known else now  # the same object while nothing differs
            self._standings = self.table, self.clock(), known
        return known

    def schedule(self, firsts: int = 0) -> None:
        """kube-scheduler tries each waiting pod once, in the extender's order; of those that it has not tried
        before, at most ``firsts``, 0: all."""
        standings, nowhere, left = self.standings(), set[object](), firsts or len(self.server.pods)
        self._waiting, self.reasons = [], {}
        waiting = {each.uid: each for each in self.server.waiting()}
        pods = [self.cache.snapshot.pods.get(uid) for uid in waiting]
        known = [each for each in pods if each is not None]
        for pod in sorted(known, key=lambda each: queue_key(each, ANYWHERE, standings)):
            if not waiting[pod.uid].tried:
                left -= 1
                if left < 0:
                    continue
            why = self._try(pod, waiting[pod.uid], standings, nowhere)
            if why:
                self.reasons[pod.uid] = why
                self._refused(waiting[pod.uid])
                self._waiting.append(waiting_pod(pod, self.policies(pod), self.names))

    def preempt(self, steps: int) -> None:
        """So many steps of the preemptor; the clock goes on by `SUB_STEP_MS` with each."""
        for _ in range(steps):
            cast(Any, self.clock).turn(SUB_STEP_MS)
            self.cache.expire()
            self.preemptor.step()

    def _try(self, pod: Pod, its: SimPod, standings: NamespaceStandings, nowhere: set[object]) -> str:
        """Bind the pod; returns why not."""
        if standings.of(pod.namespace).refuses:
            return "budget"
        snapshot = self.cache.snapshot
        if self.caps.refusal(pod, snapshot) is not None:
            return "cap"
        assert pod.request is not None
        policy = for_fits(self.policies(pod))
        asked = fit_key(pod.request, policy, ())
        capped = self.caps.refused_nodes(pod, self.names, snapshot)
        if asked in nowhere and pod.reserved is None:
            return "cap" if capped else "room"
        found = self._fits.partition(asked, snapshot.nodes, self.names)
        fits = [name for name in found.fits if name not in capped]
        if not found.fits:
            nowhere.add(asked)
        if pod.reserved is not None:
            mine = as_found_by(pod.uid, snapshot.node(pod.reserved.node))
            if not isinstance(fit(pod.request, mine, policy), Refusal):
                return self._bind(pod, its, pod.reserved.node)
        if not fits:
            return "cap" if capped else "room"
        scores = self._fits.scored(asked, snapshot.nodes, fits)[0]
        return self._bind(pod, its, fits[int(scores.argmax())])

    def _bind(self, pod: Pod, its: SimPod, name: str) -> str:
        """As `Binder.bind`: fit again, take the cards, compare the caps, and write."""
        node = self.cache.snapshot.node(name)
        assert pod.request is not None
        placement = fit(pod.request, as_found_by(pod.uid, node), self.policies(pod))
        assert isinstance(placement, Placement), "it fitted a moment ago"
        taken = self.cache.assume(pod, node, placement, self.caps.exceeded)
        if isinstance(taken, Refusal):
            return "cap"
        assert taken
        if self.server.random.randrange(100) < self.server.loses:
            self.cache.forget(pod.uid)
            return "call"
        was_reserved = its.reserved is not None
        its.node, its.placement, its.bound_ms = name, placement, self.clock()
        self.bindings.append(Binding(its, self.clock(), was_reserved))
        self.server.changed(its)
        return ""

    def _refused(self, its: SimPod) -> None:
        if not its.tried:
            its.tried = True
            self.server.changed(its)


def _pdb(work: Workload) -> Any:
    raw = {
        "metadata": {"namespace": work.namespace, "name": work.name},
        "spec": {"selector": {"matchLabels": {"app": work.name}}},
        "status": {"disruptionsAllowed": 0},
    }
    return read_pdb(raw)
