"""Nodes and cards for all members of a gang at once. Pure.

The nodes that take the most members go first, and the last members go to the fullest node that takes all of
them. Of one shape that uses the fewest nodes; several shapes go one after another, the largest first, to
nodes of the gang before others. Domains of a topology are chosen in the same way, and nodes within them.

What a domain takes of each shape alone is known before anything is placed: so most domains are never tried.
Of those that could be better than the best so far at most `TRIES` are.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.refusal import spent
from scheduler_ext.gangs.apart import Apart, Checks
from scheduler_ext.gangs.capacity import Capacity, PlanInput, placed_on, shape_of
from scheduler_ext.gangs.domains import Domain, called, domains_of, label_value
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.cpu_members import cpu_members_of, unplaced
from scheduler_ext.snapshot.host_left import offered
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot, assume, end_planned, undrain, unreserve
from timekeeper.core.dialects.moments import cards_at_once
from timekeeper.core.gangs import MAX_SIZE, Gang
from timekeeper.core.rating.held import least_milli
from timekeeper.core.values import Placement
from timekeeper.core.violation import first_of

TRIES = 8  # domains in which a whole gang is placed, to find the best
MAX_NAMED = 3  # members without GPUs, in a sentence
MAX_AHEAD = 8  # kinds of waiting pods that come first, for which a place is sought
INNER_TRIES = 2  # the same, of the preferred topology within each domain of the required one


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """A member's node and cards."""

    pod: Pod
    node: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class GangPlan:
    """``members``: those that fit together; ``left``: those that found no place beside them; ``why``: the
    last one's reason, for people. ``near``: the domain of a required topology, or of a preferred one the
    domains. ``least``: no plan for these members has fewer nodes, 0 if that is not known; ``untried``: how
    many domains might take more, or need fewer nodes. ``unplaced``: names of members without GPUs for which
    no node has the CPU and memory beside these; the gang does not start then. ``is_kept_off``: rules about
    other pods keep those without a place off nodes with cards for them."""

    members: tuple[PlannedMember, ...]
    left: tuple[Pod, ...] = ()
    why: str = ""
    near: str = ""
    least: int = 0
    untried: int = 0
    unplaced: tuple[str, ...] = ()
    is_kept_off: bool = False

    def suffices(self, needed: int) -> bool:
        """Whether the gang can start with it, which needs this number of members with cards."""
        return len(self.members) >= needed and not self.unplaced


NO_MORE = "no node takes more of them"
LATE = "the time for a plan was over"


def plan(
    pods: Sequence[Pod],
    given: PlanInput,
    beside: Collection[Pod] = (),
) -> GangPlan:
    """A place for as many of the pods as fit together. Cards that are kept or drained for them count as free.
    ``beside``: other members, which run."""
    return _Plan(pods, given, beside).made()


def lack_text(found: GangPlan) -> str:
    """How many fit, what is missing, and why, for people. Where there are cards, none is missing."""
    if not found.left:
        return why_text(found)
    fit, where = len(found.members), f" in {found.near}" if found.near else ""
    cards = "" if found.is_kept_off else f" {_lacked_cards(found)};"
    return f"{fit} of {fit + len(found.left)} members fit{where};{cards} {why_text(found)}"


def _lacked_cards(found: GangPlan) -> str:
    """How many of all cards are missing, and on how many nodes the others are."""
    nodes, missing = len({member.node for member in found.members}), missing_cards(found)
    others = f", the others on {nodes} {'node' if nodes == 1 else 'nodes'}" if nodes else ""
    return f"{missing} cards missing of {missing + _cards(member.pod for member in found.members)}{others}"


def why_text(found: GangPlan) -> str:
    """Why not all fit, for people; "" if they do."""
    if not found.unplaced:
        return found.why
    named = first_of(found.unplaced, MAX_NAMED)
    cpu = f"no node has the CPU and memory of {named}, of this gang, beside the members with cards"
    return f"{found.why}; {cpu}" if found.left else cpu


def place_text(found: GangPlan) -> str:
    """On how many nodes they are, where, and how much better a plan could be, for people."""
    nodes = len({each.node for each in found.members})
    where = f" in {found.near}" if found.near else ""
    least = f" (at least {found.least})" if 0 < found.least < nodes else ""
    tried = f"; {found.untried} others were not tried" if found.untried else ""
    return f"on {nodes} {'node' if nodes == 1 else 'nodes'}{least}{where}{tried}"


def missing_cards(found: GangPlan) -> int:
    """How many cards the pods without a place ask for."""
    return _cards(found.left)


def _cards(pods: Iterable[Pod]) -> int:
    requests = (pod.request for pod in pods if pod.request is not None)
    return sum(cards_at_once(request.asks) for request in requests)


class _Plan:
    """``_shapes``: the pods by what they need, the largest first."""

    def __init__(self, pods: Sequence[Pod], given: PlanInput, beside: Collection[Pod]) -> None:
        self.given, self.beside = given, frozenset(pod.node for pod in beside)
        self.caps = CapChecks(lambda: given.standings)
        snapshot = given.snapshot
        for pod in pods:
            snapshot = end_planned(snapshot, pod.uid)
        snapshot = with_first(snapshot, pods, given)
        snapshot = without_kept(snapshot, pods)  # only now, for filter keeps these cards from all others
        self.base = snapshot
        self.apart = Apart(pods, snapshot)
        self.has_rules = self.apart.has_rules
        groups: dict[object, list[Pod]] = {}
        for pod in pods:
            kind = self.apart.kind(pod) if self.has_rules else None
            groups.setdefault((shape_of(pod), kind), []).append(pod)
        self.shapes = sorted(groups.values(), key=_largest_first)
        self.capacity = Capacity(
            shapes=self.shapes, given=given, base=snapshot, caps=self.caps, apart=self.apart
        )
        gang = pods[0].gang if pods else None
        self.gang = gang or Gang("/", len(pods), len(pods))
        self.untried = 0

    def made(self) -> GangPlan:
        required, preferred = self.gang.topology or self.apart.together, self.gang.preferred
        if required:
            return self._required(required, preferred)
        found = self._within(None, preferred, TRIES)
        if found.left:
            return self._plan(found)
        # of one shape there is no plan with fewer nodes
        is_least = len(self.shapes) == 1 and not preferred
        bounds = [] if is_least else self._domains("", None)
        return self._plan(found, found.spread_text(preferred), bounds)

    def _required(self, label: str, preferred: str) -> GangPlan:
        domains = self._domains(label, None, is_bound_there=True)
        found, domain = self._best(domains, preferred, TRIES, INNER_TRIES)
        if found.why == NO_MORE and domain is None and self._values(label):
            found.why = f"no {called(label)} where members run takes one of them"
        elif found.why == NO_MORE and domain is None:
            found.why = f"no node with the label {label} takes one of them"
        elif found.why == NO_MORE and self.untried:
            found.why = f"{self.untried} others might take more, and were not tried"
        elif found.why == NO_MORE:
            found.why = f"no {called(label)} takes more of them"
        return self._plan(found, called(label, domain.value) if domain is not None else "", domains)

    def _plan(self, found: "_Attempt", near: str = "", domains: Sequence[Domain] = ()) -> GangPlan:
        """``domains``: one of them has the members."""
        members, left = tuple(found.members), found.left
        enough = [] if left else [each for each in domains if each.takes(self.shapes) >= len(members)]
        least = min((each.least_nodes(self.shapes) for each in enough), default=0)
        why = LATE if left and self.given.is_late() else found.why
        unplaced, is_kept_off = self._cpu_lack(found), bool(left) and why == found.kept_off
        return GangPlan(members, left, why, near, least, self.untried, unplaced, is_kept_off)

    def _cpu_lack(self, found: "_Attempt") -> tuple[str, ...]:
        """Names of members without GPUs that no node takes beside these."""
        beside = cpu_members_of(self.shapes[0][0], self.base)
        if not beside or not found.members:
            return ()
        return unplaced(beside, map(self.capacity.without_promised, found.nodes_now()))

    def _within(self, names: Collection[str] | None, preferred: str, tries: int) -> "_Attempt":
        """The members on these nodes, in few domains of the preferred topology. Nodes without its label take
        those that are left; any node, once it is late."""
        if not preferred:
            attempt = _Attempt(self)
            attempt.fill(names)
            return attempt
        domains = self._domains(preferred, names)
        if len(self.shapes) > 1 and not self.beside:
            whole, _ = self._best(domains, "", tries, 0)
            if not whole.left:
                return whole
        attempt, near = _Attempt(self), self._values(preferred)
        while attempt.left and domains and not self.given.is_late():
            domain = min(domains, key=lambda each: _of_few(each, attempt.waiting, near))
            domains.remove(domain)
            if not domain.takes(attempt.waiting):
                break  # nor do the others
            attempt.fill(domain.nodes)
        if attempt.left:
            attempt.fill(names)
        return attempt

    def _best(
        self, domains: Sequence[Domain], preferred: str, tries: int, inner: int
    ) -> tuple["_Attempt", Domain | None]:
        """The members in one of the domains: as many as fit, on the fewest nodes, in the fullest domain."""
        best, at = _Attempt(self), None
        best.fill(())  # why none can be placed, whatever the nodes
        ranked = sorted(domains, key=lambda each: _of_one(each, self.shapes))
        for number, domain in enumerate(ranked):
            if at is not None and not self._is_hopeful(domain, best, preferred):
                continue
            if number >= tries or self.given.is_late():
                self.untried += 1
                continue
            attempt = self._within(domain.nodes, preferred, inner)
            if at is None or attempt.worth(preferred) > best.worth(preferred):
                best, at = attempt, domain
        return best, at

    def _is_hopeful(self, domain: Domain, best: "_Attempt", preferred: str) -> bool:
        """Whether a plan in the domain could be better."""
        takes, placed = domain.takes(self.shapes), len(best.members)
        if takes != placed:
            return takes > placed
        return domain.least_nodes(self.shapes) < len(best.nodes) or len(best.values(preferred)) > 1

    def _domains(
        self, label: str, names: Collection[str] | None, is_bound_there: bool = False
    ) -> list[Domain]:
        """The domains of the label, "": one of all nodes. ``names``: only of these nodes, None: of all;
        ``is_bound_there``: only the domains of members that run, if these are in any. A node without the
        label is in none."""
        takes = self.capacity.all
        there = {name for each in takes for name in (each if names is None else names) if name in each}
        found = ((name, label_value(self.base.node(name), label) if label else "") for name in there)
        values = {name: value for name, value in found if value is not None}
        near = self._values(label) if is_bound_there else set()
        domains = domains_of(values, takes, self.capacity.cards, self._free)
        return [each for each in domains if each.value in near] if near else domains

    def _free(self, name: str) -> int:
        return self.capacity.free(self.base.node(name))

    def _values(self, label: str) -> set[str]:
        """The domains of the members that run."""
        found = (label_value(self.base.node(name), label) for name in self.beside)
        return {each for each in found if each is not None}


def without_kept(snapshot: Snapshot, pods: Iterable[Pod]) -> Snapshot:
    """Without what is reserved or drained for these members of one gang."""
    for pod in pods:
        snapshot = unreserve(snapshot, pod.uid)
        if snapshot.drain is not None and snapshot.drain.is_of(pod):
            snapshot = undrain(snapshot)
    return snapshot


def with_first(snapshot: Snapshot, pods: Sequence[Pod], given: PlanInput) -> Snapshot:
    """With the pods that get cards before these members do."""
    return _with_ahead(_with_nominated(snapshot, pods, given), given)


def _with_nominated(snapshot: Snapshot, pods: Sequence[Pod], given: PlanInput) -> Snapshot:
    """With the pods of no less priority on the cards that became free for them: as kube-scheduler counts them
    on its nodes."""
    least = min((each.priority for each in pods), default=0)
    for each in given.nominated:
        if each.priority >= least:
            placement = placed_on(each, snapshot.node(each.nominated), given.policies(each))
            if placement is not None:
                snapshot = assume(snapshot, each, each.nominated, placement)
    return snapshot


def _with_ahead(snapshot: Snapshot, given: PlanInput) -> Snapshot:
    """With the pods that come first, where they fit: they are about to get these cards."""
    hopeless: set[object] = set()
    for pod in given.ahead:
        shape = shape_of(pod)
        if shape in hopeless or len(hopeless) >= MAX_AHEAD or given.is_late():
            continue
        for node in offered(pod, snapshot):
            placement = None if node.closed else placed_on(pod, node, given.policies(pod))
            if placement is not None:
                snapshot = assume(snapshot, pod, node.name, placement)
                break
        else:
            hopeless.add(shape)
    return snapshot


class _Attempt:
    """One way to place the members, in several steps. ``waiting``: those without a place, by shape."""

    def __init__(self, of: _Plan) -> None:
        self._plan, self._snapshot, self._apart = of, of.base, of.apart.copy()
        self.waiting = [list(each) for each in of.shapes]
        self.members: list[PlannedMember] = []
        self.nodes: set[str] = set()
        self.why = self.kept_off = ""  # the second where rules about other pods are why

    def nodes_now(self) -> Iterable[NodeInfo]:
        """All nodes, with the members on them."""
        return self._snapshot.nodes.values()

    @property
    def left(self) -> tuple[Pod, ...]:
        """Those without a place."""
        return tuple(pod for each in self.waiting for pod in each)

    def fill(self, names: Collection[str] | None) -> None:
        """Places as many more as fit on these nodes; None: on any. One that must be near another may fit
        after it."""
        before = -1
        while before < len(self.members):
            before = len(self.members) if self._plan.has_rules else MAX_SIZE
            for shape, pods in enumerate(self.waiting):
                if pods:
                    self.waiting[shape] = self._place(shape, pods, names)

    def worth(self, preferred: str) -> tuple[int, int, int]:
        """The greater of two attempts is better."""
        return len(self.members), -len(self.values(preferred)), -len(self.nodes)

    def values(self, label: str) -> set[str | None]:
        """In which domains of the label the members are; empty without a label."""
        return {label_value(self._snapshot.node(name), label) for name in self.nodes} if label else set()

    def spread_text(self, label: str) -> str:
        """In which domains the members are, for people; "" without any."""
        values = self.values(label)
        if None in values or not values:
            return ""
        return (
            called(label, str(*values)) if len(values) == 1 else f"{len(values)} domains of {called(label)}"
        )

    def _place(self, shape: int, pods: list[Pod], names: Collection[str] | None) -> list[Pod]:
        """Those that are left."""
        first, plan = pods[0], self._plan
        if first.request is None:
            return self._leave(pods, first.malformed)
        standing = plan.given.standings.of_pod(first)
        if standing.refuses:
            return self._leave(pods, spent(first.namespace, standing.deciding_group).sentence)
        takes = plan.capacity.of(shape, self._snapshot, self.nodes, names)
        last = self._snapshot.comes_last(first.namespace)
        checks = Checks(self._apart, first)
        order = sorted(self._place_of(name, last) for name in takes) if plan.has_rules else []
        while pods and takes:
            if plan.has_rules:
                # one by one, as each changes where the next may be
                at = next((at for at, place in enumerate(order) if not checks.refusal(place[-1])), None)
                if at is None:
                    break
                name, most = order.pop(at)[-1], 1
            else:
                name = self._next(takes, len(pods), last)
                most = takes[name]
            taken = 0
            takes[name] -= most
            if not takes[name]:
                del takes[name]
            for pod in pods[:most]:
                capped = plan.caps.refusal(pod, self._snapshot)
                if capped is not None:
                    return self._leave(pods[taken:], capped.sentence)
                placement = placed_on(pod, self._snapshot.node(name), plan.given.policies(pod))
                if placement is None:
                    takes.pop(name, None)
                    break
                self._snapshot = assume(self._snapshot, pod, name, placement)
                self.members.append(PlannedMember(pod, name, placement))
                self._apart.add(pod, name)
                taken += 1
            if taken:
                self.nodes.add(name)
            if plan.has_rules and name in takes:
                insort(order, self._place_of(name, last))
            pods = pods[taken:]
        reasons = Counter(reason for name in takes if (reason := checks.refusal(name)) is not None)
        refused = plan.capacity.refused[shape]
        reasons.update(refused[name] for name in refused if names is None or name in names)
        self.kept_off = checks.sentence(reasons) if reasons else ""
        return self._leave(pods, self.kept_off or NO_MORE)

    def _next(self, takes: Mapping[str, int], count: int, last: Collection[str]) -> str:
        """The fullest node that takes this many pods, else the one that takes the most. Those of ``last``
        come once there is no other."""
        takes = {name: most for name, most in takes.items() if name not in last} or takes
        used = {*self.nodes, *self._plan.beside}
        enough = [each for each in takes if takes[each] >= count]
        if enough:
            return min(enough, key=lambda each: (each not in used, self._free(each), each))
        return max(takes, key=lambda each: (takes[each], each in used, each))

    def _place_of(self, name: str, last: Collection[str]) -> tuple[bool, bool, int, str]:
        """Where the node is in the order in which nodes take one pod each."""
        return name in last, name not in self.nodes and name not in self._plan.beside, self._free(name), name

    def _free(self, name: str) -> int:
        return self._plan.capacity.free(self._snapshot.node(name))

    def _leave(self, pods: Iterable[Pod], why: str) -> list[Pod]:
        left = list(pods)
        if left:
            self.why = why
        return left


def _of_one(domain: Domain, shapes: Sequence[Sequence[Pod]]) -> tuple[int, int, int, str]:
    """The order in which domains are tried for all members."""
    return -domain.takes(shapes), domain.least_nodes(shapes), domain.free, domain.value


def _of_few(
    domain: Domain, waiting: Sequence[Sequence[Pod]], near: Collection[str]
) -> tuple[bool, int, int, int, str]:
    """The order in which domains are filled: where other members run, then the one that takes the most, of
    those that take all the one of the fewest nodes that is fullest."""
    takes = domain.takes(waiting)
    return (not (takes and domain.value in near), *_of_one(domain, waiting))


def _largest_first(alike: Sequence[Pod]) -> tuple[int, int, str]:
    pod = alike[0]
    least = least_milli(pod.request) if pod.request is not None else 0
    return -least, -pod.cpu_milli, min(each.uid for each in alike)
