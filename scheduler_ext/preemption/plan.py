"""The preemptor's next step, decided from values: which waiting pod gets victims, and which victims a
reservation still needs.

It acts where kube-scheduler cannot. kube-scheduler sees the sums of a node and no cards: where the sums
suffice it finds no victim and never calls the preempt verb. And it sees no standings: two pods of equal
priority are equal to it. Where the sums are short and the victims have lower priority, kube-scheduler
preempts by itself.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from msgspec import structs

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.other_resources import exceed
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.precedence import is_debtor, is_reclaim, may_preempt, outranks, owes
from scheduler_ext.preemption.victims import Choice, PreemptionContext, best, choose, overstays
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.host_left import host_lack
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, is_short, without_pod
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import WaitingPod
from timekeeper.core.ledger.reservation import MAX_MS, Reservation, ReservationKind
from timekeeper.core.values import GPURequest

NOTICED_S = 1.0  # by then kube-scheduler knows that cards are free
UNUSED_S = 15.0  # by then kube-scheduler has tried a pod that was woken, its longest back-off included


@dataclass(frozen=True, slots=True)
class PreemptionLimits:
    """The settings of preemption."""

    patience_ms: int  # how long cards are held beyond the victims' longest grace period
    pdb_grace_ms: int  # how long a debtor's PodDisruptionBudget is honoured
    most: int  # most pods for which cards are held at a time
    scheduler: str  # schedulerName of the pods that it acts for
    needs_standings: bool  # a timekeeper is configured: no eviction before its first answer


def may_begin(pod: Pod, limits: PreemptionLimits, standings: NamespaceStandings) -> bool:
    """True for a pod that kube-scheduler has tried without success and evicts none for, and that may
    preempt."""
    if pod.scheduler != limits.scheduler or pod.request is None or not pod.unschedulable or pod.nominated:
        return False
    if pod.gang is not None:  # cards for one of its members alone start none
        return False
    waits = not (pod.node or pod.gated or pod.deleting or pod.terminal or pod.reserved)
    return waits and may_preempt(pod, standings)


class PreemptibleNodes:
    """Per node, what decides whether it is worth a search: the least priority on its cards, the namespaces of
    its pods, and whether one of them is idle. Only changed nodes and pods are computed again."""

    def __init__(self) -> None:
        self._nodes: Map[NodeInfo] = Map()
        self._pods: Map[Pod] = Map()
        self._idle: dict[str, str] = {}  # UID of an idle pod -> its node
        self._saved_up: dict[str, frozenset[str]] = {}  # node -> namespaces of such pods on it
        self._preemptible: dict[str, tuple[int, frozenset[str]]] = {}
        self._least: float | None = None  # priority on any node; None: to be computed
        self._debtors: tuple[NamespaceStandings | None, frozenset[str]] = None, frozenset()

    def follow(self, snapshot: Snapshot) -> None:
        """Updates to this snapshot."""
        for name in snapshot.nodes.changed_since(self._nodes):
            node = snapshot.nodes.get(name)
            pods = [snapshot.pods.get(uid) for uid in node.allocations] if node is not None else []
            there = [pod for pod in pods if pod is not None and pod.holding]
            self._preemptible.pop(name, None)
            self._saved_up.pop(name, None)
            self._least = None
            if there:
                least = min(pod.priority for pod in there)
                self._preemptible[name] = least, frozenset(pod.namespace for pod in there)
            if saved_up := frozenset(pod.namespace for pod in there if pod.is_saved_up):
                self._saved_up[name] = saved_up
        for uid in snapshot.pods.changed_since(self._pods):
            pod = snapshot.pods.get(uid)
            self._idle.pop(uid, None)
            if pod is not None and pod.is_idle and pod.holding:
                self._idle[uid] = pod.node
        self._nodes, self._pods = snapshot.nodes, snapshot.pods

    def worth(self, waiting: Pod, standings: NamespaceStandings) -> list[str]:
        """Names of the nodes that have a pod of lower rank, sorted."""
        return sorted(self._worth(waiting, standings))

    def is_worth(self, waiting: Pod, standings: NamespaceStandings) -> bool:
        """Whether a node has a pod of lower rank."""
        return next(self._worth(waiting, standings), None) is not None

    def _worth(self, waiting: Pod, standings: NamespaceStandings) -> Iterator[str]:
        debtors, default_owes = self._debtors_of(standings), owes(standings.default)
        reclaims = standings.of(waiting.namespace).status == "IN_BUDGET" and bool(
            debtors or default_owes or self._idle
        )
        if not (reclaims or self._saved_up) and waiting.priority <= self._least_priority():
            return
        idle = {*self._idle.values()}
        for name, (least, namespaces) in self._preemptible.items():
            lower = (standings.lower_of(standings.of(there)) for there in self._saved_up.get(name, ()))
            is_lower = least < waiting.priority or any(
                priority is not None and priority < waiting.priority for priority in lower
            )
            if is_lower or (
                reclaims and (default_owes or name in idle or not debtors.isdisjoint(namespaces))
            ):
                yield name

    def _least_priority(self) -> float:
        if self._least is None:
            self._least = min((least for least, _ in self._preemptible.values()), default=inf)
        return self._least

    def _debtors_of(self, standings: NamespaceStandings) -> frozenset[str]:
        if standings is not self._debtors[0]:
            owing = frozenset(namespace for namespace, each in standings.listed.items() if owes(each))
            self._debtors = standings, owing
        return self._debtors[1]


def plan(
    waiting_pod: WaitingPod,
    nodes: Iterable[NodeInfo],
    context: PreemptionContext,
    limits: PreemptionLimits,
    claimed: Collection[str] = (),
    enough: int | None = None,
) -> Choice | None:
    """The victims that give the waiting pod its cards on one of these nodes. None if it fits already,
    if kube-scheduler preempts by itself, or if no set of victims helps.

    Where terminating pods will free enough, the choice has no victims: its cards are to be held for this pod,
    so that the next one looks further. ``claimed``: nodes that kube-scheduler has nominated for other pods,
    which get what is freed there. ``enough``: the nodes after which the search ends once there is a choice.
    """
    choices: list[Choice] = []
    for looked_at, node in enumerate(nodes):
        if choices and enough is not None and looked_at >= enough:
            break
        if not _may_run_there(waiting_pod, node) or context.is_capped(waiting_pod.pod, node.name):
            continue
        choice = choose(waiting_pod.pod, node, context, waiting_pod.policy)
        if choice is None:
            continue
        if not choice.victims and not choice.awaits:
            return None
        if not choice.victims and node.name in claimed:
            continue
        if _is_ours(waiting_pod.pod, node, choice, context, limits):
            choices.append(choice)
    return best(choices, context)


def fits_on_any(waiting_pod: WaitingPod, nodes: Iterable[NodeInfo]) -> bool:
    """True if one of these nodes has what the pod waits for, cards and all."""
    pod = waiting_pod.pod
    return pod.request is not None and any(
        node.node_object is not None
        and pod.node_constraints.admit(node.name, node.node_object.node_labels)
        and not host_lack(pod, without_pod(node, pod.uid))
        and not isinstance(fit(pod.request, without_pod(node, pod.uid), waiting_pod.policy), Refusal)
        for node in nodes
    )


def kind_of(pod: Pod, victims: Iterable[Pod], standings: NamespaceStandings) -> ReservationKind:
    """``reclaim`` if a victim is chosen by its namespace's standing alone."""
    by_standing = any(v.priority >= pod.priority and outranks(pod, v, standings) for v in victims)
    return "reclaim" if by_standing else "fragmentation"


def reservation_for(
    pod: Pod, choice: Choice, context: PreemptionContext, limits: PreemptionLimits
) -> Reservation:
    """The reservation that is written before any victim is evicted."""
    forced = [each for each in choice.victims if may_be_forced(pod, each, context.standings, limits)]
    covered = any(context.pdbs.over(each) or each.uid in context.vetoed for each in forced)
    honoured_ms = pdb_grace_ms(limits, context.standings) if covered else 0
    lasts_ms = limits.patience_ms + choice.grace_ms(context.now_ms) + honoured_ms
    since_ms = context.now_ms // 1000 * 1000
    return Reservation(
        node=choice.node,
        placement=choice.placement,
        since_ms=since_ms,
        until_ms=min(context.now_ms + lasts_ms, since_ms + MAX_MS),
        kind=kind_of(pod, choice.victims, context.standings),
    )


NOT_THERE = "the held cards are no longer on the node"
OUTRANKED = "the pod may no longer preempt others"
CAPPED = "a cap of its namespace or group allows the pod no cards now"
NO_WAY = "the pods left there may no longer be evicted for it"


def remaining_victims(
    pod: Pod,
    reservation: Reservation,
    snapshot: Snapshot,
    context: PreemptionContext,
    policy: Callable[[Pod], Policy],
    asked: Iterable[str],
) -> Choice | str:
    """The victims still to be evicted from the reserved cards; a sentence if waiting is of no use. ``asked``:
    UIDs of pods evicted already, whether their objects show it or not.

    The result depends on the objects alone, so a new leader continues with the same victims.
    """
    allocation, node = snapshot.allocation(pod.uid), snapshot.node(reservation.node)
    if allocation is None or not allocation.uses or node.closed or pod.request is None:
        return NOT_THERE
    if not may_preempt(pod, context.standings):
        return OUTRANKED
    if context.is_capped(pod, node.name):
        return CAPPED
    there = [snapshot.pods.get(uid) for uid in asked]
    here = [each for each in there if each is not None and each.node == node.name]
    given = [each for each in here if not each.deleting or overstays(each, context.now_ms)]
    on_them = structs.replace(pod, request=_on(reservation, pod.request, node))
    patient = replace(context, late_ms=MAX_MS)  # the reservation's own end limits the waiting
    choice = choose(on_them, node, patient, policy(pod), given)
    return choice if choice is not None else NO_WAY


def is_refused_there(
    pod: Pod, node: NodeInfo, waiting_pod: WaitingPod | None, free_since_s: float, now_s: float
) -> bool:
    """True if kube-scheduler refuses the node whose cards are free for the pod, for a reason unknown here: it
    has called filter since without the node. (It offers every node that passes its own checks:
    ``percentageOfNodesToScore`` is 100.) A pod with constraints that are not read here may never reach
    filter: for it time alone tells. Times of a monotonic clock, in seconds."""
    if pod.constrained and now_s - free_since_s >= UNUSED_S:
        return True
    if (
        waiting_pod is None
        or waiting_pod.offered is None
        or is_in_tree_short(pod, without_pod(node, pod.uid))
    ):
        return False
    return waiting_pod.refused_s > free_since_s + NOTICED_S and node.name not in waiting_pod.offered


def pdb_grace_ms(limits: PreemptionLimits, standings: NamespaceStandings) -> int:
    """How long a debtor's PodDisruptionBudget is honoured: as the timekeeper publishes, else as the flag
    says."""
    return limits.pdb_grace_ms if standings.pdb_grace_ms is None else standings.pdb_grace_ms


def may_be_forced(pod: Pod, victim: Pod, standings: NamespaceStandings, limits: PreemptionLimits) -> bool:
    """True if the victim may in the end be deleted against its PodDisruptionBudget: it is a debtor, and its
    budget is honoured for less time than cards can be held. A preemption by priority alone never violates
    a PodDisruptionBudget."""
    grace_ms = victim.spec_grace_ms if victim.deleting else victim.grace_ms
    lasts_ms = pdb_grace_ms(limits, standings) + grace_ms + limits.patience_ms
    return lasts_ms <= MAX_MS and is_debtor(victim, standings) and is_reclaim(pod, victim, standings)


def _on(reservation: Reservation, request: GPURequest, node: NodeInfo) -> GPURequest:
    """The request, limited to the reserved cards; where the device plugin picks the cards, unchanged."""
    if node.node_object is None or node.node_object.plugin_chooses:
        return request
    slices = [each for _, placed in reservation.placement.containers for each in placed]
    return replace(request, uuids=tuple(sorted({each.uuid for each in slices})))


def _may_run_there(waiting_pod: WaitingPod, node: NodeInfo) -> bool:
    """True if kube-scheduler passed the node to filter or preempt, or refused it for lack of resources and no
    other reason known here. Of a pod with constraints that are not read here, only passed nodes count. A node
    that has less memory in all than the pod requests, or less of another resource, never runs it."""
    pod = waiting_pod.pod
    if node.node_object is None or node.closed:
        return False
    passed = (waiting_pod.offered or frozenset()) | waiting_pod.preemptible
    if node.name in passed or pod.constrained:
        return node.name in passed
    if exceed(pod.others, node.node_object.others):
        return False
    if waiting_pod.offered is not None and not is_in_tree_short(pod, node):
        return False
    return pod.node_constraints.admit(node.name, node.node_object.node_labels)


def is_in_tree_short(pod: Pod, node: NodeInfo) -> bool:
    """True if kube-scheduler's own sums of the node's GPU resources, CPU, memory or another resource do not
    suffice for the pod."""
    return is_short(node, pod.amounts) or bool(host_lack(pod, node))


def _is_ours(
    pod: Pod, node: NodeInfo, choice: Choice, context: PreemptionContext, limits: PreemptionLimits
) -> bool:
    """True if kube-scheduler would not do it and it is certain to succeed: kube-scheduler's own sums suffice
    then, and no PodDisruptionBudget forbids it."""
    if _is_kube_schedulers(pod, node, choice):
        return False
    going = (*choice.victims, *choice.leaving)
    if not _sums_suffice(pod, node, (each for each in going if each.node == node.name)):
        return False
    kept = [each for each in choice.victims if not may_be_forced(pod, each, context.standings, limits)]
    return context.pdbs.violations(kept) == 0


def _is_kube_schedulers(pod: Pod, node: NodeInfo, choice: Choice) -> bool:
    """True if kube-scheduler preempts by itself: its sums are short, and the victims' priority is lower."""
    lower = all(victim.priority < pod.priority and not victim.deleting for victim in choice.victims)
    return bool(choice.victims) and lower and is_in_tree_short(pod, node)


def _sums_suffice(pod: Pod, node: NodeInfo, going: Iterable[Pod]) -> bool:
    """Of the GPU resources; the choice has seen to CPU, memory and the others."""
    left: Mapping[str, int] = dict(node.left)
    freed: dict[str, int] = {}
    for each in going:
        for resource, amount in each.amounts:
            freed[resource] = freed.get(resource, 0) + amount
    return all(amount <= left.get(resource, 0) + freed.get(resource, 0) for resource, amount in pod.amounts)
