"""Who leaves so that a gang starts: the fewest that rank lower. Pure.

Pods over budget leave before others, and of each the fewest. With at most `EXACT` pods that may leave no
smaller set would do. With more the set is irreducible: without any one of them, with those that leave with
it, the gang would not start. A plan answers whether it would; what nodes take of each shape at most says
where none is needed.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from msgspec import structs

from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.gangs.apart import Apart
from scheduler_ext.gangs.capacity import Capacity, PlanInput, shape_of
from scheduler_ext.gangs.domains import label_value
from scheduler_ext.gangs.plan import GangPlan, PlannedMember, plan, with_first, without_kept
from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.plan import PreemptionLimits, may_be_forced
from scheduler_ext.preemption.precedence import Rank, may_preempt, rank_of, set_key
from scheduler_ext.preemption.victims import PreemptionContext, candidates, is_awaited, may_leave
from scheduler_ext.snapshot.gang_table import gang_key, spare_members
from scheduler_ext.snapshot.node_info import NodeInfo, without_pods
from scheduler_ext.snapshot.snapshot import EMPTY, Snapshot, without_holders
from timekeeper.core.kube.pod_rules import NO_RULES

EXACT = 12  # pods, of which each set is tried

FIRST_NODES = 512  # that are looked at before the others: the ones with the fewest pods
MOST_PLANS = 800  # in search of the smallest set

Victims = frozenset[str]


class _SpentError(Exception):
    """There are too many sets to try."""


@dataclass(frozen=True, slots=True)
class Displacement:
    """``members`` start once ``victims`` have left, and those that do so anyway; ``grace_ms``: how long they
    may take."""

    members: tuple[PlannedMember, ...]
    victims: tuple[Pod, ...]
    grace_ms: int


def lead_of(pods: Iterable[Pod]) -> Pod:
    """The pod of the lowest priority: who ranks below it may leave for all of them."""
    return min(pods, key=lambda pod: (pod.priority, pod.uid))


def displaced(
    pods: Sequence[Pod],
    given: PlanInput,
    context: PreemptionContext,
    limits: PreemptionLimits,
    beside: Sequence[Pod] = (),
    only: Collection[str] | None = None,
) -> Displacement | None:
    """Who leaves so that all of these members start; None: no set of victims helps, or none was found in
    time. Cards that are reserved for them count as free. ``beside``: members that run; ``only``: UIDs of the
    victims that were chosen earlier, None: there are none."""
    if not pods or not all(may_preempt(pod, context.standings) for pod in pods):
        return None
    return _Choice(pods, given, context, limits, beside, only).made()


@dataclass(slots=True)
class _Choice:
    """Sets of victims are sets of UIDs."""

    pods: Sequence[Pod]
    given: PlanInput
    context: PreemptionContext
    limits: PreemptionLimits
    beside: Sequence[Pod]
    only: Collection[str] | None
    lead: Pod = field(init=False)
    leaving: tuple[Pod, ...] = field(init=False)
    _base: Snapshot = field(init=False)
    _capacity: Capacity = field(init=False)
    _known: dict[str, Pod] = field(default_factory=dict)  # those that may leave
    _ranks: dict[str, Rank] = field(default_factory=dict)
    _units: dict[str, Victims] = field(default_factory=dict)
    _takes: dict[tuple[int, str, Victims], int] = field(default_factory=dict)
    _sums: list[dict[str | None, int]] = field(default_factory=list)  # by shape and domain

    def __post_init__(self) -> None:
        self.lead = lead_of(self.pods)
        snapshot, there = self.given.snapshot, (pod for pod in self.context.pods.values() if pod.holding)
        self.leaving = tuple(pod for pod in there if is_awaited(pod, self.lead, self.context))
        unsure = ((uid, snapshot.allocation(uid)) for uid in snapshot.unsure)
        gone = [uid for uid, allocation in unsure if allocation and allocation.state == "orphaned"]
        rest = without_holders(snapshot, [*gone, *(pod.uid for pod in self.leaving)])
        # what a cap allows does not grow; pods that come first get what is free, and not what is reserved
        rest = with_first(replace(rest, held=snapshot.held), self.pods, self.given)
        self._base = without_kept(rest, self.pods)
        self.given = replace(self.given, snapshot=self._base, nominated=(), ahead=())
        shapes: dict[object, list[Pod]] = {}
        for pod in self.pods:
            shapes.setdefault(shape_of(pod), []).append(pod)
        caps = CapChecks(lambda: self.given.standings)
        # of cards alone: what other pods keep off may change once some have left
        bare = [[structs.replace(pod, rules=NO_RULES) for pod in alike] for alike in shapes.values()]
        apart = Apart(bare[0], EMPTY)
        self._capacity = Capacity(shapes=bare, given=self.given, base=self._base, caps=caps, apart=apart)

    def made(self) -> Displacement | None:
        found = self._plan(frozenset())
        if found is not None:
            return self._displacement(found, frozenset())
        there = [node for node in self._base.nodes.values() if node.allocations]
        there.sort(key=lambda node: (len(node.allocations), node.name))
        for are_debtors in (True, False):
            for count in (FIRST_NODES, len(there)):
                may_go = self._may_go(there[:count], are_debtors)
                try:
                    both = self._smallest(may_go)
                except _SpentError:
                    both = self._irreducible(may_go)
                if both is not None:
                    return self._displacement(*both)
                if count >= len(there) or self.given.is_late():
                    break
        return None

    def _displacement(self, found: GangPlan, victims: Victims) -> Displacement:
        ordered = tuple(self._known[uid] for uid in sorted(victims))
        graces = [pod.spec_grace_ms if pod.deleting else pod.grace_ms for pod in ordered]
        graces += [max(pod.grace_ms, pod.leaves_ms - self.context.now_ms) for pod in self.leaving]
        return Displacement(found.members, ordered, max(graces, default=0))

    def _plan(self, victims: Victims) -> GangPlan | None:
        """A plan for all members once these have left; None: there is none, or its time is over."""
        emptied = without_holders(self._base, victims)
        given = replace(self.given, snapshot=replace(emptied, held=self._base.held))
        found = plan(self.pods, given, self.beside)
        return found if found.suffices(len(self.pods)) else None

    # who may leave

    def _may_go(self, nodes: Iterable[NodeInfo], are_debtors: bool) -> Victims:
        """The pods that may be evicted, with all that leave with them, where one of these nodes then takes
        more. ``are_debtors``: those over budget alone."""
        if self.only is None:
            every = [each.pod for node in nodes for each in candidates(self.lead, node, self.context)]
        else:
            noted = (self.context.pods.get(uid) for uid in self.only)
            going = {pod.uid for pod in self.leaving}
            every = [pod for pod in noted if pod is not None and pod.holding and pod.uid not in going]
        ranks = ((pod, rank_of(pod, self.context.standings)) for pod in every)
        self._ranks = {pod.uid: rank for pod, rank in ranks if not (are_debtors and rank[0])}
        some = (pod for pod in every if pod.uid in self._ranks and self._is_candidate(pod))
        self._known = {pod.uid: pod for pod in some}
        self._units = {
            uid: frozenset((uid, *(mate.uid for mate in self.context.leave_with([pod]))))
            for uid, pod in self._known.items()
        }
        there: dict[str, set[str]] = {}
        for uid, unit in self._units.items():
            if unit <= self._known.keys():
                there.setdefault(self._known[uid].node, set()).add(uid)
        useful = [uids for name, uids in there.items() if self._gains(name, frozenset(uids))]
        return frozenset(mate for uids in useful for uid in uids for mate in self._units[uid])

    def _is_candidate(self, pod: Pod) -> bool:
        if self.context.standings.of(pod.namespace).watched:
            return False
        return self._is_allowed([pod]) and may_leave(self.lead, pod, self.context)

    def _is_allowed(self, pods: Iterable[Pod]) -> bool:
        """Whether no PodDisruptionBudget keeps one of them for good."""
        context, limits = self.context, self.limits
        covered = [pod for pod in pods if context.pdbs.over(pod)]
        kept = [pod for pod in covered if not may_be_forced(self.lead, pod, context.standings, limits)]
        return not context.pdbs.violations(kept)

    def _is_closed(self, victims: Victims) -> bool:
        """Whether no other pod leaves with them."""
        return not self.context.leave_with([self._known[uid] for uid in victims])

    def _price(self, victims: Collection[str]) -> tuple[Any, ...]:
        """The least set leaves: of the fewest pods in budget, then of the fewest pods, then of the lowest
        priorities, the highest of each set first, then of accounts that go last, then of the youngest."""
        ranks = [self._ranks[uid] for uid in victims]
        ages = sorted(map(self._age_ms, victims), reverse=True)
        return sum(tier for tier, *_ in ranks), len(ranks), *set_key(ranks), ages, sorted(victims)

    def _age_ms(self, uid: str) -> int:
        started_ms = self._known[uid].started_ms
        return self.context.now_ms - started_ms if started_ms else 0

    # the smallest set

    def _smallest(self, may_go: Victims) -> tuple[GangPlan, Victims] | None:
        """Raises _SpentError if there are too many sets to try."""
        if len(may_go) > EXACT:
            raise _SpentError
        sets = (each for size in range(1, len(may_go) + 1) for each in combinations(may_go, size))
        plans = 0
        for victims in map(frozenset, sorted(sets, key=self._price)):
            pods = [self._known[uid] for uid in victims]
            if self._could(victims) and self._is_closed(victims) and self._is_allowed(pods):
                if plans == MOST_PLANS:
                    raise _SpentError
                plans += 1
                found = self._plan(victims)
                if found is not None:
                    return found, victims
        return None

    # an irreducible set

    def _irreducible(self, may_go: Victims) -> tuple[GangPlan, Victims] | None:
        units = self._allowed_units(may_go)
        both = self._enough(units)
        if both is None:
            return None
        found, victims = both
        used = {member.node for member in found.members}
        near = [unit for unit in units if any(self._known[uid].node in used for uid in unit)]
        fewer = victims & frozenset[str]().union(*near)
        if fewer < victims and self._is_closed(fewer) and (again := self._plan(fewer)) is not None:
            found, victims = again, fewer
        for unit in sorted(units, key=self._price, reverse=True):
            fewer = victims - unit
            if unit <= victims and self._could(fewer) and self._is_closed(fewer):
                again = self._plan(fewer)
                if again is not None:
                    found, victims = again, fewer
        return None if self.given.is_late() else (found, victims)

    def _allowed_units(self, may_go: Victims) -> list[Victims]:
        """What leaves as one, as PodDisruptionBudgets allow them together: of a gang as many single pods as
        it can spare, and the gang."""
        gangs = self.context.gangs_of(self._known[uid] for uid in may_go)
        units: dict[Victims, None] = {}
        spent: dict[str, int] = {}
        for uid in sorted(may_go, key=lambda uid: self._price((uid,))):
            key, unit = gang_key(self._known[uid]), self._units[uid]
            if key is not None and len(unit) == 1 and len(gangs[key]) > 1:
                spent[key] = spent.get(key, 0) + 1
                if spent[key] > spare_members(gangs[key]):
                    mates = [*gangs[key], *self.context.leave_with(gangs[key])]
                    unit = frozenset(pod.uid for pod in mates)
            if unit <= may_go:
                units[unit] = None
        allowed: list[Victims] = []
        covered: list[Pod] = []
        for unit in units:
            more = [self._known[uid] for uid in unit if self.context.pdbs.over(self._known[uid])]
            if self._is_allowed([*covered, *more]):
                covered += more
                allowed.append(unit)
        return allowed

    def _enough(self, units: Sequence[Victims]) -> tuple[GangPlan, Victims] | None:
        """Enough of these, from node to node: first those with the fewest pods in budget, and the fewest."""
        by_node: dict[str, set[str]] = {}
        for unit in units:
            for name in {self._known[uid].node for uid in unit}:
                by_node.setdefault(name, set()).update(unit)
        victims, tried = frozenset[str](), 0
        order = sorted(by_node, key=lambda name: (self._price(by_node[name])[:2], name))
        for at, name in enumerate(order, 1):
            victims |= by_node[name]
            is_due = len(victims) >= 2 * tried or at == len(order)
            if is_due and self._could(victims) and self._is_closed(victims):
                if self.given.is_late():
                    return None
                found, tried = self._plan(victims), len(victims)
                if found is not None:
                    return found, victims
        return None

    # what nodes take at most

    def _gains(self, name: str, victims: Victims) -> bool:
        """Of several shapes, one may take what was the place of another; and rules may keep pods off."""
        shapes = range(len(self._capacity.shapes))
        is_free = len(shapes) == 1 and not any(pod.rules != NO_RULES for pod in self.pods)
        before = [self._most(at, name, frozenset()) if is_free else 0 for at in shapes]
        return any(self._most(at, name, victims) > before[at] for at in shapes)

    def _could(self, victims: Victims) -> bool:
        """False if nodes, or the nodes of one domain, take too few of a shape, whatever takes the rest."""
        going: dict[str, set[str]] = {}
        for uid in victims:
            going.setdefault(self._known[uid].node, set()).add(uid)
        enough: list[set[str | None]] = []
        for at, (pods, before) in enumerate(zip(self._capacity.shapes, self._sums_before(), strict=True)):
            sums = dict(before)
            for name, uids in going.items():
                domain, more = self._domain(name), self._most(at, name, frozenset(uids))
                sums[domain] = sums.get(domain, 0) + more - self._most(at, name, frozenset())
            enough.append({domain for domain, takes in sums.items() if takes >= len(pods)})
        return bool(set.intersection(*enough))

    def _sums_before(self) -> list[dict[str | None, int]]:
        for takes in self._capacity.all if not self._sums else ():
            sums: dict[str | None, int] = {}
            for name, count in takes.items():
                sums[self._domain(name)] = sums.get(self._domain(name), 0) + count
            self._sums.append(sums)
        return self._sums

    def _domain(self, name: str) -> str | None:
        label = self.lead.gang.topology if self.lead.gang is not None else ""
        return label_value(self._base.node(name), label) if label else ""

    def _most(self, shape: int, name: str, gone: Victims) -> int:
        if not gone:
            return self._capacity.all[shape].get(name, 0)
        key = shape, name, gone
        if key not in self._takes:
            self._takes[key] = self._capacity.after(shape, without_pods(self._base.node(name), gone))
        return self._takes[key]
