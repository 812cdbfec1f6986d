"""What the verbs and the preemptor would decide about pods that do not exist, one after another. Each takes
its cards in the next one's snapshot, and its victims are gone there. Pure, by the functions that decide.

kube-scheduler has checks and preferences of its own. Of its checks those that the extender reads are made
here: labels, taints and resources of nodes. Its preferences choose among nodes only where the extender's
ranks, of which the best node alone has the highest, do not outweigh them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_ext.fit import refusal
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.plan import GangPlan, lack_text, plan
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.model.node import host_share
from scheduler_ext.model.pdb import PDBs
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.preemption.cooldown import Cooldown
from scheduler_ext.preemption.plan import PreemptionLimits, foreseen, is_in_tree_short, kind_of
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.scoring.rank import MOST, behind_others, ranked
from scheduler_ext.scoring.selection import Policies, for_fits
from scheduler_ext.snapshot.allocation import Allocation
from scheduler_ext.snapshot.drains import beside_drain
from scheduler_ext.snapshot.host_room import offered
from scheduler_ext.snapshot.snapshot import Snapshot, assume, pod_deleted, release, undrain
from scheduler_ext.verbs.drained import DrainedFits, beside_drained, whose
from scheduler_ext.verbs.fit_cache import FitCache, fit_key
from scheduler_ext.verbs.last_decisions import CountedRefusal, summed
from scheduler_ext.waiting.order import WaitingPod
from timekeeper.core.gangs import Gang
from timekeeper.core.request.host import HostShare
from timekeeper.core.values import Card, GPURequest, Placement

IN_TREE = Refusal("kube-scheduler's own sums of the node are short", "room")


@dataclass(frozen=True, slots=True)
class SimulationInput:
    """Everything that a simulation reads, of one moment."""

    snapshot: Snapshot
    standings: NamespaceStandings
    pdbs: PDBs
    cooldown: Cooldown
    policies: Policies
    limits: PreemptionLimits
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPod:
    """What would happen to a pod. ``node``: "" where it waits; ``cards``: all of the node. ``fitting``: how
    many nodes fit without a victim. ``victims`` leave for it, by a preemption of this ``kind``; ``awaited``:
    further pods that terminate already. ``reasons``: why nodes refuse it, if it waits."""

    pod: Pod
    node: str = ""
    allocation: Allocation | None = None
    cards: tuple[Card, ...] = ()
    fitting: int = 0
    victims: tuple[Pod, ...] = ()
    awaited: int = 0
    kind: str = ""
    reasons: tuple[CountedRefusal, ...] = ()
    host: HostShare | None = None  # what it requests of the node's CPU and memory


def simulate(pods: Sequence[Pod], books: SimulationInput) -> list[SimulatedPod]:
    """The outcome of each pod, in this order. A gang is decided at its first pod, whole: no victim leaves for
    it."""
    simulation, found = _Simulation(books), dict[str, SimulatedPod]()
    for pod in pods:
        if pod.gang is None:
            found[pod.uid] = simulation.add(pod)
        elif pod.uid not in found:
            gang = [each for each in pods if (each.namespace, each.gang) == (pod.namespace, pod.gang)]
            found |= simulation.add_gang(gang, pod.gang)
    return [found[pod.uid] for pod in pods]


class _Simulation:
    def __init__(self, books: SimulationInput) -> None:
        self._books, self.snapshot = books, books.snapshot
        self._caps, self._fit_cache = CapChecks(lambda: books.standings), FitCache()

    def add(self, pod: Pod) -> SimulatedPod:
        """Decides about the pod, and lets the outcome count for the next one."""
        request = pod.request
        if request is None:
            return _refused(pod, refusal.malformed(pod.malformed))
        if self._books.standings.of_pod(pod).refuses:
            return _refused(pod, refusal.SPENT)
        capped = self._caps.refusal(pod, self.snapshot)
        if capped is not None:
            return _refused(pod, capped)
        policy = self._books.policies(pod)
        key = fit_key(request, for_fits(policy), pod.amounts)
        candidates = [each.name for each in offered(pod, self.snapshot)]
        found = self._fit_cache.partition(key, self.snapshot.nodes, candidates)
        if self.snapshot.drain is not None and not found.fits:
            found = beside_drained(found, pod, key, self.snapshot, self._books.now_ms, DrainedFits())
        short = {n: IN_TREE for n in found.fits if is_in_tree_short(pod, self.snapshot.node(n))}
        short |= self._caps.refused_nodes(pod, found.fits, self.snapshot)
        fits = [name for name in found.fits if name not in short]
        if fits:
            return self._placed(pod, request, policy, fits)
        return self._preempting(pod, policy) or SimulatedPod(
            pod=pod, reasons=summed((short, found.short, found.refused))
        )

    def add_gang(self, pods: Sequence[Pod], gang: Gang) -> dict[str, SimulatedPod]:
        """Decides about all pods of the gang at once, by UID. If too few fit, none takes a card."""
        found = self._planned(pods, self.snapshot)
        lack = _lack_of(found, len(pods), gang)
        if lack:
            lack += self._kept_from(pods, gang)
            return {pod.uid: _refused(pod, Refusal(lack, "gang")) for pod in pods}
        placed = {
            each.pod.uid: replace(self._taken(each.pod, each.node, each.placement), fitting=1)
            for each in found.members
        }
        return placed | {pod.uid: _refused(pod, Refusal(found.why, "gang")) for pod in found.left}

    def _planned(self, pods: Sequence[Pod], snapshot: Snapshot) -> GangPlan:
        return plan(pods, PlanInput(snapshot, self._books.standings, self._books.policies))

    def _kept_from(self, pods: Sequence[Pod], gang: Gang) -> str:
        """That cards with which the gang would start are kept for another one; "" if they are not."""
        drain = self.snapshot.drain
        if drain is None or not self._planned(pods, undrain(self.snapshot)).suffices(gang.minimum):
            return ""
        cards = sum(len(each) for _, each in drain.cards)
        return f"; {cards} cards are kept for {whose(drain, pods[0].namespace)} {drain.text}"

    def _placed(self, pod: Pod, request: GPURequest, policy: Policy, fits: list[str]) -> SimulatedPod:
        node = fits[0] if len(fits) == 1 else self._best(pod, request, policy, fits)
        there = beside_drain(pod, self.snapshot.node(node), self._books.now_ms)
        placement = fit(request, there, policy)
        if isinstance(placement, Refusal):
            return _refused(pod, placement)
        return replace(self._taken(pod, node, placement), fitting=len(fits))

    def _best(self, pod: Pod, request: GPURequest, policy: Policy, fits: list[str]) -> str:
        key = fit_key(request, policy, pod.amounts)
        scores, by_name = self._fit_cache.scored(key, self.snapshot.nodes, fits)
        scores = behind_others(scores, fits, self.snapshot.comes_last(pod.namespace))
        best: int = ranked(policy, pod.uid, scores, by_name).tolist().index(MOST)
        return fits[best]

    def _preempting(self, pod: Pod, policy: Policy) -> SimulatedPod | None:
        books = self._books
        context = PreemptionContext(
            self.snapshot.pods,
            books.standings,
            books.now_ms,
            books.pdbs,
            books.cooldown,
            is_capped=lambda each, node: self._caps.is_capped(each, node, self.snapshot),
        )
        if context.cooldown.is_exhausted(pod, context.now_ms):
            return None
        limits = books.limits
        if limits.needs_standings and books.standings is UNHEARD:
            limits = replace(limits, most=0)
        waiting = WaitingPod(pod, policy, None)
        choice = foreseen(waiting, self.snapshot.nodes.values(), context, limits)
        if choice is None:
            return None
        for victim in (*choice.victims, *choice.leaving):
            self.snapshot = release(pod_deleted(self.snapshot, victim, books.now_ms), victim.uid)
        for ended in choice.ending:
            self.snapshot = release(self.snapshot, ended.uid)
        return replace(
            self._taken(pod, choice.node, choice.placement),
            victims=choice.victims,
            awaited=len(choice.leaving) + len(choice.ending),
            kind=kind_of(pod, choice.victims, books.standings) if choice.victims else "",
        )

    def _taken(self, pod: Pod, node: str, placement: Placement) -> SimulatedPod:
        self.snapshot = assume(self.snapshot, pod, node, placement)
        there = self.snapshot.node(node)
        host = host_share(pod, there.node_object) if there.node_object is not None else None
        return SimulatedPod(
            pod=pod, node=node, allocation=self.snapshot.allocation(pod.uid), cards=there.cards, host=host
        )


def _lack_of(found: GangPlan, count: int, gang: Gang) -> str:
    """What the gang would wait for; "" if it would start."""
    start = f"gang {gang.name} starts whole"
    if count < gang.minimum:
        return f"{start}: {count} of {gang.size} members are simulated"
    if not found.suffices(gang.minimum):
        return f"{start}: {lack_text(found)}"
    return ""


def _refused(pod: Pod, why: Refusal) -> SimulatedPod:
    """By every node alike."""
    return SimulatedPod(pod=pod, reasons=(CountedRefusal(why, 0),))
