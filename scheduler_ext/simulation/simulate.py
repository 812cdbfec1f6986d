"""Where the verbs would place pods that do not exist, one after another. Each takes its cards in the next
one's snapshot; no pod leaves for them. Pure, by the functions that decide, but for the clock that bounds it.

kube-scheduler has checks and preferences of its own. Of its checks those that the extender reads are made
here: labels, taints and resources of nodes. Its preferences choose among nodes only where the extender's
ranks, of which the best node alone has the highest, do not outweigh them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from scheduler_ext.fit import refusal
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.capacity import PlanInput, never_text, shape_of
from scheduler_ext.gangs.plan import GangPlan, lack_text, plan
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.plan import is_in_tree_short
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.scoring.rank import behind_others, ranked
from scheduler_ext.scoring.selection import Policies, for_fits
from scheduler_ext.snapshot.allocation import Allocation
from scheduler_ext.snapshot.drains import beside_drain
from scheduler_ext.snapshot.host_left import offered
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot, assume, undrain
from scheduler_ext.verbs.drained import DrainedFits, beside_drained, whose
from scheduler_ext.verbs.fit_cache import CALL_STEPS, FilterResult, FitCache, fit_key
from scheduler_ext.verbs.last_decisions import CountedRefusal, summed
from timekeeper.core.gangs import Gang
from timekeeper.core.values import Card, GPURequest, Placement

IN_TREE = Refusal("kube-scheduler's own sums of the node are short", "full")
PROCESSOR_S = 0.1  # of one simulation, from its body to its answer
_LOOK_S = 0.5 * PROCESSOR_S  # what must be left for another look at nodes
_DECIDE_S = 0.2 * PROCESSOR_S  # and for another pod, which is placed on a node that was looked at
_SLICE = 64  # nodes that are looked at between two looks at the clock
LATE = Refusal("the time of the simulation was over", "search")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationInput:
    """Everything that a simulation reads, of one moment. ``left_s``: the seconds of a processor that it may
    still use; ``autoscales``: nodes may come for a gang."""

    snapshot: Snapshot
    standings: NamespaceStandings
    policies: Policies
    now_ms: int
    left_s: Callable[[], float] = lambda: PROCESSOR_S
    autoscales: bool = False

    @property
    def is_late(self) -> bool:
        """Whether no more nodes are looked at."""
        return self.left_s() < _LOOK_S

    @property
    def is_over(self) -> bool:
        """Whether no more pods are decided about."""
        return self.left_s() < _DECIDE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPod:
    """What would happen to a pod. ``node``: "" where it has none; ``cards``: all of the node. ``fitting``:
    how many nodes fit. ``is_partial``: the time did not suffice for all nodes. ``reasons``: why nodes refuse
    it, if it has none."""

    pod: Pod
    node: str = ""
    allocation: Allocation | None = None
    cards: tuple[Card, ...] = ()
    fitting: int = 0
    reasons: tuple[CountedRefusal, ...] = ()
    is_partial: bool = False


def simulate(pods: Sequence[Pod], books: SimulationInput) -> list[SimulatedPod]:
    """The outcome of each pod, in this order. A gang is decided at its first pod, whole."""
    simulation, decided = _Simulation(books), dict[str, SimulatedPod]()
    for pod in pods:
        if pod.gang is None:
            decided[pod.uid] = _late(pod) if books.is_over else simulation.add(pod)
        elif pod.uid not in decided:
            gang = [member for member in pods if (member.namespace, member.gang) == (pod.namespace, pod.gang)]
            decided |= simulation.add_gang(gang, pod.gang)
    return [decided[pod.uid] for pod in pods]


class _StepsInTime(Steps):
    """Steps that are few once the simulation is late, so that no search begins."""

    def __init__(self, books: SimulationInput) -> None:
        super().__init__(CALL_STEPS)
        self._books = books

    @property
    def are_few(self) -> bool:
        return super().are_few or self._books.is_late


class _Kind:
    """What is known about pods that each node takes alike. ``_names``: of the nodes that are not looked at
    yet; ``_answered``: how many of the simulation's placements are counted."""

    def __init__(self, pod: Pod, request: GPURequest, policy: Policy, books: SimulationInput) -> None:
        self._pod, self._policy, self._books = pod, policy, books
        self._for_fits = fit_key(request, for_fits(policy), pod.amounts)
        self._for_scores = fit_key(request, policy, pod.amounts)
        self._names = [node.name for node in offered(pod, books.snapshot)]
        self._nodes, self._cache = Map[NodeInfo](), FitCache()
        self._fits: dict[str, None] = {}
        self._short: dict[str, Refusal] = {}
        self._refused: dict[str, Refusal] = {}
        self._answered = 0

    @property
    def is_partial(self) -> bool:
        """Whether there are nodes that were not looked at."""
        return bool(self._names) or any(why is refusal.NOT_TRIED for why in self._refused.values())

    def look(self, snapshot: Snapshot, taken: Sequence[str]) -> FilterResult:
        """Each node's answer, as far as the time goes. ``taken``: the nodes of all placements so far."""
        again = {name for name in taken[self._answered :] if self._nodes.get(name) is not None}
        self._ask(list(again), snapshot)
        self._answered = len(taken)
        while self._names and not self._books.is_late:
            self._ask(self._names[:_SLICE], snapshot)
            del self._names[:_SLICE]
        return FilterResult(list(self._fits), self._short, self._refused)

    def _ask(self, names: list[str], snapshot: Snapshot) -> None:
        for name in names:
            self._nodes = self._nodes.set(name, snapshot.node(name))
            for answers in (self._fits, self._short, self._refused):
                answers.pop(name, None)
        found = self._cache.partition(self._for_fits, self._nodes, names, _StepsInTime(self._books))
        for name in found.fits:
            if is_in_tree_short(self._pod, snapshot.node(name)):
                self._refused[name] = IN_TREE
            else:
                self._fits[name] = None
        self._short |= found.short
        self._refused |= found.refused

    def best(self, pod: Pod, fits: list[str], last: Collection[str]) -> str:
        """The node that is ranked first for the pod. ``last``: nodes that come behind all others."""
        steps = _StepsInTime(self._books)
        scores, by_name = self._cache.scored(self._for_scores, self._nodes, fits, steps)
        ranks: list[int] = ranked(self._policy, pod.uid, behind_others(scores, fits, last), by_name).tolist()
        return fits[ranks.index(max(ranks))]


class _Simulation:
    def __init__(self, books: SimulationInput) -> None:
        self._books, self.snapshot = books, books.snapshot
        self._caps, self._taken_on = CapChecks(lambda: books.standings), list[str]()
        self._kinds: dict[object, _Kind] = {}

    def add(self, pod: Pod) -> SimulatedPod:
        """Decides about the pod, and lets the outcome count for the next one."""
        books, request = self._books, pod.request
        if request is None:
            return _refused(pod, refusal.malformed(pod.malformed))
        standing = books.standings.of_pod(pod)
        if standing.refuses:
            return _refused(pod, refusal.spent(pod.namespace, standing.deciding_group))
        capped = self._caps.refusal(pod, self.snapshot)
        if capped is not None:
            return _refused(pod, capped)
        policy = books.policies(pod)
        shape = shape_of(pod), policy
        if shape not in self._kinds:
            self._kinds[shape] = _Kind(pod, request, policy, books)
        kind = self._kinds[shape]
        answers = kind.look(self.snapshot, self._taken_on)
        if self.snapshot.drain is not None and not answers.fits:
            key = fit_key(request, for_fits(policy), pod.amounts)
            answers = beside_drained(answers, pod, key, self.snapshot, books.now_ms, DrainedFits())
        capped_nodes = self._caps.refused_nodes(pod, answers.fits, self.snapshot)
        fits = [name for name in answers.fits if name not in capped_nodes]
        if not fits:
            reasons = summed((capped_nodes, answers.short, answers.refused))
            return SimulatedPod(pod=pod, reasons=reasons, is_partial=kind.is_partial)
        last = self.snapshot.comes_last(pod.namespace)
        node = fits[0] if len(fits) == 1 else kind.best(pod, fits, last)
        placement = fit(request, beside_drain(pod, self.snapshot.node(node), books.now_ms), policy)
        if isinstance(placement, Refusal):
            return _refused(pod, placement)
        taken = self._taken(pod, node, placement)
        return replace(taken, fitting=len(fits), is_partial=kind.is_partial)

    def add_gang(self, pods: Sequence[Pod], gang: Gang) -> dict[str, SimulatedPod]:
        """Decides about all pods of the gang at once, by UID. If too few fit, none takes a card."""
        planned = plan(pods, self._given(self.snapshot))
        lack = self._lack_of(planned, pods, gang)
        if lack:
            lack += self._kept_from(pods, gang)
            if self._books.is_late:
                return {pod.uid: _late(pod) for pod in pods}
            return {pod.uid: _refused(pod, Refusal(lack, "gang")) for pod in pods}
        placed = {
            member.pod.uid: replace(self._taken(member.pod, member.node, member.placement), fitting=1)
            for member in planned.members
        }
        return placed | {pod.uid: _refused(pod, Refusal(planned.why, "gang")) for pod in planned.left}

    def _given(self, snapshot: Snapshot) -> PlanInput:
        books = self._books
        return PlanInput(snapshot, books.standings, books.policies, lambda: books.is_late)

    def _lack_of(self, planned: GangPlan, pods: Sequence[Pod], gang: Gang) -> str:
        """What the gang would wait for; "" if it would start."""
        start = f"gang {gang.name} starts whole"
        if len(pods) < gang.minimum:
            return f"{start}: {len(pods)} of {gang.size} members are simulated"
        if planned.suffices(gang.minimum):
            return ""
        never = never_text(pods, gang.minimum, self._given(self.snapshot), self._books.autoscales)
        return f"{start}: {never or lack_text(planned)}"

    def _kept_from(self, pods: Sequence[Pod], gang: Gang) -> str:
        """That cards with which the gang would start are kept for another one; "" if they are not."""
        drain = self.snapshot.drain
        if drain is None or not plan(pods, self._given(undrain(self.snapshot))).suffices(gang.minimum):
            return ""
        cards = sum(len(uuids) for _, uuids in drain.cards)
        return f"; {cards} cards are kept for {whose(drain, pods[0].namespace)} {drain.text}"

    def _taken(self, pod: Pod, node: str, placement: Placement) -> SimulatedPod:
        self.snapshot = assume(self.snapshot, pod, node, placement)
        self._taken_on.append(node)
        there = self.snapshot.node(node)
        allocation = self.snapshot.allocation(pod.uid)
        return SimulatedPod(pod=pod, node=node, allocation=allocation, cards=there.cards)


def _late(pod: Pod) -> SimulatedPod:
    return replace(_refused(pod, LATE), is_partial=True)


def _refused(pod: Pod, why: Refusal) -> SimulatedPod:
    """By every node alike."""
    return SimulatedPod(pod=pod, reasons=(CountedRefusal(why, 0),))
