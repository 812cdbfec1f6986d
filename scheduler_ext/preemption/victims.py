"""Which pods of a node must leave so that a waiting pod gets its cards there, and the CPU, memory and other
resources that it requests beside them: one pure choice, for kube-scheduler's preempt verb and for the
preemptor.

The price of a pod of a gang is that of all pods that leave with it, on this node and on others: those without
which the gang does not go on. A gang of which one may not be evicted keeps all of them.

A set of victims is chosen only if `fit` finds a placement once all have left and the node then has the other
resources, and only if no victim could stay. Of all such sets the least is taken by, in this order: number of
victims; number of victims that are not debtors (`precedence`); their priorities, highest first; the ranks of
their accounts, that of the one that goes first compared first; violated PodDisruptionBudgets; number of
victims that are not being deleted yet; their ages, since the youngest lose the least work.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pdb import NONE, PDBs
from scheduler_ext.model.pod import MAX_GRACE_MS, NonGPUPod, Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.cooldown import NOTHING_DONE, Cooldown
from scheduler_ext.preemption.lower_bound import LowerBound
from scheduler_ext.preemption.precedence import may_preempt, outranks, rank_of, set_key
from scheduler_ext.preemption.victim_search import Candidate, Victims, fewest
from scheduler_ext.scoring.policy import BINPACK, Policy
from scheduler_ext.snapshot.allocation import Allocation
from scheduler_ext.snapshot.gang_table import (
    GangKey,
    Gangs,
    gang_key,
    not_without,
    side_of,
    spare_members,
)
from scheduler_ext.snapshot.host_left import HostAmounts, host_amounts, host_lack
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, without_pods
from scheduler_ext.snapshot.reservations import began_before, later_reservations
from timekeeper.core.values import GPURequest, Placement

NOTHING_BESIDE = Refusal("not enough CPU, memory or another resource beside the GPUs", "full")

YOUNG_MS = 600_000  # so long after its start a gang leaves for priority alone
CIRCLE_MS = 1_800_000  # so long an owner whose pods have left for a gang displaces none of it
LATE_MS = 15_000  # a kubelet needs at most this much longer than the grace period, unless it is broken


@dataclass(frozen=True, slots=True)
class PreemptionContext:
    """What a choice depends on beside the pod and the node."""

    pods: Map[Pod]  # every GPU pod by UID, of the node's snapshot
    standings: NamespaceStandings
    now_ms: int
    pdbs: PDBs = NONE
    cooldown: Cooldown = NOTHING_DONE
    # True if a cap refuses the pod its cards now, on the named node ("": on every node)
    is_capped: Callable[[Pod, str], bool] = lambda _pod, _node: False
    late_ms: int = LATE_MS  # how long beyond its deletionTimestamp a terminating pod is still expected to go
    gangs: Gangs = field(default_factory=Gangs)
    vetoed: frozenset[str] = frozenset()  # UIDs of pods whose evictions somebody refuses
    # of gangs: when they started, and whose pods have left for them
    _known: dict[GangKey, tuple[int, frozenset[str]]] = field(default_factory=dict, init=False, compare=False)

    def gangs_of(self, pods: Iterable[Pod]) -> dict[GangKey, list[Pod]]:
        """The gangs of these pods, each with its members that stay."""
        keys = dict.fromkeys(key for each in pods if (key := gang_key(each)) is not None)
        return {key: self._staying(key) for key in keys}

    def leave_with(self, pods: Collection[Pod]) -> list[Pod]:
        """The pods that leave if these do, for their gangs do not go on without them, or they share a
        claim."""
        asked = {pod.uid for pod in pods}
        going = {pod.uid: pod for pod in pods}
        while more := [*not_without(going.values(), self.gangs_of(going.values()).values())] or [
            pod for pod in self._sharers(going.values()) if pod.uid not in going
        ]:
            going |= {pod.uid: pod for pod in more}
        return [pod for uid, pod in going.items() if uid not in asked]

    def _sharers(self, pods: Iterable[Pod]) -> list[Pod]:
        shared = {(pod.namespace, name) for pod in pods for name in pod.shared_claims}
        if not shared:  # nearly always
            return []
        found = (pod for pod in self.pods.values() if pod.shared_claims and pod.holding and not pod.deleting)
        return [pod for pod in found if shared & {(pod.namespace, name) for name in pod.shared_claims}]

    def spares_gang(self, waiting: Pod, pod: Pod) -> bool:
        """True for a pod of a gang that started a short time ago and would leave for its standing alone, or
        for which pods of the waiting one's owner have left. Both are known from its members' objects."""
        key = gang_key(pod)
        if key is None:
            return False
        if key not in self._known:
            mates = self._staying(key)
            marks = [mate.marked_ms for mate in mates if mate.is_marked]
            recent = [mate for mate in mates if self.now_ms - mate.displaced.at_ms < CIRCLE_MS]
            whose = frozenset(owner for mate in recent for _, owner in mate.displaced.victims)
            self._known[key] = min(marks, default=self.now_ms), whose
        started_ms, owners = self._known[key]
        is_young = self.now_ms - started_ms < YOUNG_MS
        return side_of(waiting) in owners or (is_young and waiting.priority <= pod.priority)

    def _staying(self, key: GangKey) -> list[Pod]:
        found = self.gangs.members(self.pods, key)
        return [each for each in found if not self.cooldown.is_leaving(each, self.now_ms)]


@dataclass(frozen=True, slots=True)
class Choice:
    """What frees cards on a node: ``victims`` leave, and the waiting pod then has ``placement``. Those of a
    gang may be on other nodes. Without victims it fits now, or once terminating pods are gone."""

    node: str
    victims: tuple[Pod, ...]
    placement: Placement
    violations: int  # victims that leave against a PodDisruptionBudget
    leaving: tuple[Pod, ...] = ()  # terminating pods whose cards are needed
    ending: tuple[Allocation, ...] = ()  # allocations of orphaned pods whose cards are needed
    leaving_beside: tuple[NonGPUPod, ...] = ()  # terminating pods without GPUs whose CPU or memory is needed

    @property
    def awaits(self) -> bool:
        """True if it fits only once terminating pods are gone."""
        return bool(self.leaving or self.ending or self.leaving_beside)

    def grace_ms(self, now_ms: int) -> int:
        """How long all pods that leave may take, by their grace periods."""
        graces = [each.spec_grace_ms if each.deleting else each.grace_ms for each in self.victims]
        graces += [pod.grace_ms for pod in self.leaving]
        ends = [pod.leaves_ms for pod in self.leaving] + [pod.leaves_ms for pod in self.leaving_beside]
        ends += [allocation.until_ms for allocation in self.ending]
        return max([*graces, *(at - now_ms for at in ends)], default=0)


def choose(
    waiting: Pod,
    node: NodeInfo,
    context: PreemptionContext,
    policy: Policy = BINPACK,
    given: Sequence[Pod] = (),
) -> Choice | None:
    """The victims on this node; None if evicting every candidate would not help.

    ``given``: pods that kube-scheduler evicts already; they are not among the victims. Exact within the
    limits of `fewest`.
    """
    if waiting.request is None or node.closed or not may_preempt(waiting, context.standings):
        return None
    going = {waiting.uid, *later_reservations(waiting.uid, node), *(pod.uid for pod in given)}
    rest = without_pods(node, going)
    first = tuple(
        pod for uid in began_before(waiting.uid, node) if (pod := context.pods.get(uid)) is not None
    )
    needs = _Needs(waiting, waiting.request, policy, first)
    placement = needs.placement(rest)
    if not isinstance(placement, Refusal):
        return Choice(node.name, (), placement, 0)
    leaving = tuple(pod for pod in _bound_pods(rest, context) if is_awaited(pod, waiting, context))
    ending = tuple(allocation for allocation in rest.allocations.values() if allocation.state == "orphaned")
    beside = tuple(pod for pod in rest.non_gpu.leaving if _is_expected(pod.leaves_ms, context))
    if leaving or ending or beside:
        rest = without_pods(rest, {pod.uid for pod in leaving} | {allocation.uid for allocation in ending})
        needs = replace(needs, gone=frozenset(pod.uid for pod in beside))
        placement = needs.placement(rest)
    victims: tuple[Pod, ...] = ()
    if isinstance(placement, Refusal):
        if not placement.shortage or context.cooldown.refuses(waiting, context.now_ms):
            return None
        found = _found(needs, rest, context, given)
        if found is None:
            return None
        victims, placement = found
    violations = context.pdbs.violations(victims, before=given)
    return Choice(node.name, victims, placement, violations, leaving, ending, beside)


@dataclass(frozen=True, slots=True)
class _Needs:
    """What a pod needs of a node. ``first``: the pods that go there before it, because cards of the node were
    reserved for them earlier. ``gone``: UIDs of terminating pods without GPUs that are counted as gone."""

    waiting: Pod
    request: GPURequest
    policy: Policy
    first: tuple[Pod, ...]
    gone: frozenset[str] = frozenset()

    def lacks(self, node: NodeInfo) -> HostAmounts:
        """What is lacking beside cards."""
        return host_lack(self.waiting, node, self.first, self.gone)

    def placement(self, node: NodeInfo) -> Placement | Refusal:
        """The cards that it gets, if nothing is lacking beside them."""
        placement = fit(self.request, node, self.policy)
        return NOTHING_BESIDE if not isinstance(placement, Refusal) and self.lacks(node) else placement


def best(choices: Iterable[Choice], context: PreemptionContext) -> Choice | None:
    """The cheapest choice among nodes, compared like kube-scheduler does, with rank in place of priority.

    The first difference decides: fewer violated PodDisruptionBudgets, for these take longest; a lower rank of
    the highest-ranked victim; a smaller sum of priorities, in which debtors count nothing; fewer victims;
    victims whose accounts go later; a later start of the highest-ranked victim; the node's name.
    """
    return min(choices, key=lambda choice: _price(choice, context), default=None)


# What kube-scheduler adds to each priority, so that fewer victims have the smaller sum.
_EVERY = 2**31


def _price(choice: Choice, context: PreemptionContext) -> tuple[Any, ...]:
    ranks = [rank_of(pod, context.standings) for pod in choice.victims]
    priorities, accounts = set_key(ranks)
    highest = priorities[0] if priorities else (-1, 0)
    started = [
        pod.started_ms or context.now_ms
        for pod, rank in zip(choice.victims, ranks, strict=True)
        if rank[:2] == highest
    ]
    total = sum(priority + _EVERY for tier, priority in priorities if tier)
    return choice.violations, highest, total, len(ranks), accounts, -min(started, default=0), choice.node


def _found(
    needs: _Needs, node: NodeInfo, context: PreemptionContext, given: Sequence[Pod]
) -> tuple[tuple[Pod, ...], Placement] | None:
    lacks = needs.lacks(node)

    def look(uids: Collection[str]) -> Placement | None:
        answer = needs.placement(without_pods(node, uids))
        return None if isinstance(answer, Refusal) else answer

    def least(victims: Victims) -> tuple[Any, ...]:
        ranks = set_key(each.rank for each in victims)
        pods = [each.pod for each in victims]
        ages = sorted((each.age_ms for each in victims), reverse=True)
        against = context.pdbs.violations(pods, before=given)
        staying = sum(not pod.deleting for pod in pods)
        others = sum(each.rank[0] for each in victims)
        return others, *ranks, against, staying, ages, sorted(pod.uid for pod in pods)

    def victims_of(those: Sequence[Candidate]) -> tuple[tuple[Pod, ...], Placement] | None:
        found = fewest(lambda held: LowerBound(needs.request, node, held, lacks), those, look, least)
        return None if found is None else _with_gangs(needs.waiting, found[0], context, given, look)

    def price(found: tuple[tuple[Pod, ...], Placement]) -> tuple[Any, ...]:
        ranks = [rank_of(each, context.standings) for each in found[0]]
        against = context.pdbs.violations(found[0], before=given)
        return len(ranks), sum(tier for tier, *_ in ranks), *set_key(ranks), against

    those = candidates(needs.waiting, node, context, {resource for resource, _ in lacks})
    options = _options(those, needs.waiting, context, given)
    return min(filter(None, map(victims_of, options)), key=price, default=None)


def _options(
    those: Sequence[Candidate], waiting: Pod, context: PreemptionContext, given: Sequence[Pod]
) -> list[list[Candidate]]:
    """The sets of candidates to choose from: those whose gangs go on without them, the same with one gang
    that ends, and with all of them."""
    gangs = context.gangs_of(each.pod for each in those)
    if not gangs:
        return [list(those)]
    alone = [each for each in those if gang_key(each.pod) is None]
    ending: list[list[Candidate]] = []
    for key, members in gangs.items():
        mine = [each for each in those if gang_key(each.pod) == key]
        mine.sort(key=lambda each: (each.rank, each.age_ms))
        spare = spare_members(members) - sum(gang_key(each) == key for each in given)
        alone += mine[: max(0, spare)]
        if spare < len(mine) and all(may_leave(waiting, each, context) for each in members):
            ending.append(mine[max(0, spare) :])
    every = [[*alone, *mine] for mine in ending]
    return [alone, *every, *([[*alone, *chain(*ending)]] if len(ending) > 1 else [])]


def may_leave(waiting: Pod, pod: Pod, context: PreemptionContext) -> bool:
    """True if the pod may be evicted for the waiting one now: it ranks lower, and nothing spares it."""
    if context.cooldown.spares(waiting, pod, context.standings, context.now_ms):
        return False
    return outranks(waiting, pod, context.standings) and not context.spares_gang(waiting, pod)


def _with_gangs(
    waiting: Pod,
    victims: Victims,
    context: PreemptionContext,
    given: Sequence[Pod],
    look: Callable[[Collection[str]], Placement | None],
) -> tuple[tuple[Pod, ...], Placement] | None:
    """The victims with those that leave with them, without others that may stay because these leave."""
    rest = context.leave_with([*given, *(each.pod for each in victims)])
    if not all(may_leave(waiting, pod, context) for pod in rest):
        return None
    going = {pod.uid: pod for pod in (*(each.pod for each in victims), *rest)}
    alone = [each for each in victims if each.pod.gang is None] if rest else []
    for each in sorted(alone, key=lambda each: each.rank, reverse=True):
        if look(going.keys() - {each.pod.uid}) is not None:
            del going[each.pod.uid]
    placement = look(going.keys())
    return None if placement is None else (tuple(going.values()), placement)


def _bound_pods(node: NodeInfo, context: PreemptionContext) -> list[Pod]:
    """The pods that are bound to the node and hold cards of it."""
    bound = (
        context.pods.get(uid) for uid, allocation in node.allocations.items() if allocation.state == "bound"
    )
    return [pod for pod in bound if pod is not None and pod.node == node.name]


def _leaves(pod: Pod, context: PreemptionContext) -> bool:
    """True if it terminates, and soon. A pod past its deletion time may stay for good, and a grace period
    longer than the longest allowed is not waited for."""
    if not pod.deleting:
        return context.cooldown.is_leaving(pod, context.now_ms)
    return _is_expected(pod.leaves_ms, context)


def _is_expected(leaves_ms: int, context: PreemptionContext) -> bool:
    """True if a pod with this deletionTimestamp is still expected to go, and soon."""
    return -context.late_ms < leaves_ms - context.now_ms <= MAX_GRACE_MS


def overstays(pod: Pod, now_ms: int) -> bool:
    """True if the pod is being deleted with a longer grace period than an eviction would give it now."""
    return pod.deleting and pod.leaves_ms - now_ms > pod.spec_grace_ms + LATE_MS


def is_awaited(pod: Pod, waiting: Pod, context: PreemptionContext) -> bool:
    """True if it leaves by itself. One of lower rank that `overstays` is a candidate instead."""
    may_shorten = overstays(pod, context.now_ms) and outranks(waiting, pod, context.standings)
    return _leaves(pod, context) and not may_shorten


def candidates(
    waiting: Pod, node: NodeInfo, context: PreemptionContext, lacking: Collection[str] = ()
) -> list[Candidate]:
    """The pods on the node that may be evicted and hold some of its cards. ``lacking``: the resources beside
    cards of which the node has too little."""
    if context.cooldown.rests(node.name, context.now_ms):
        return []
    found = []
    for pod in _bound_pods(node, context):
        allocation = node.allocations[pod.uid]
        stays = not pod.deleting or overstays(pod, context.now_ms)
        if not stays or not (allocation.uses or allocation.unnamed):
            continue
        if may_leave(waiting, pod, context):
            rank = rank_of(pod, context.standings)
            covering = context.pdbs.over(pod)
            host = tuple((name, amount) for name, amount in host_amounts(pod) if name in lacking)
            uses, age_ms = allocation.uses, _age_ms(pod, context)
            found.append(Candidate(pod, uses, allocation.unnamed, rank, covering, age_ms, host))
    return found


def _age_ms(pod: Pod, context: PreemptionContext) -> int:
    """What it has worked, in milliseconds."""
    return context.now_ms - pod.started_ms if pod.started_ms else 0
