"""Nodes and cards for all members of a gang at once. Pure.

Members of one shape are alike, and nodes are independent of each other: what a node can take of a shape does
not depend on what others take. So the nodes that take the most members go first, and the last members go to
the fullest node that takes all of them. Of one shape that uses the fewest nodes; several shapes go one after
another, the largest first, to nodes of the gang before others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.fit import fit, is_picky, shape_for
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.host_room import host_lack, offered
from scheduler_ext.snapshot.node_info import NodeInfo, is_short, with_allocation
from scheduler_ext.snapshot.snapshot import Snapshot, assume, unreserve
from timekeeper.core.request.held import least_milli
from timekeeper.core.values import Placement


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """A member's node and cards."""

    pod: Pod
    node: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class GangPlan:
    """``members``: those that fit together; ``left``: those that found no place beside them; ``why``: the
    last one's reason, for people; ``is_late``: the time was over before all nodes were looked at."""

    members: tuple[PlannedMember, ...]
    left: tuple[Pod, ...] = ()
    why: str = ""
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class PlanInput:
    """Everything that a plan reads, of one moment. ``is_late``: whether its time is over."""

    snapshot: Snapshot
    standings: NamespaceStandings
    policies: Callable[[Pod], Policy]
    is_late: Callable[[], bool] = lambda: False


NO_ROOM = "no node has room for more of them"
LATE = "the time for a plan was over"


def plan(pods: Sequence[Pod], given: PlanInput) -> GangPlan:
    """A place for as many of the pods as fit together. Cards that are reserved for them count as free."""
    return _Plan(pods, given).made()


def lack_text(found: GangPlan) -> str:
    """How many fit, what is missing, and why, for people."""
    fit, cards = len(found.members), missing_cards(found)
    return f"{fit} of {fit + len(found.left)} members fit; {cards} cards missing; {found.why}"


def missing_cards(found: GangPlan) -> int:
    """How many cards the pods without a place ask for."""
    requests = (each.request for each in found.left if each.request is not None)
    return sum(each.ask.devices for request in requests for each in request.asks if not each.init)


class _Plan:
    def __init__(self, pods: Sequence[Pod], given: PlanInput) -> None:
        self._given, self._caps = given, CapChecks(lambda: given.standings)
        snapshot = given.snapshot
        for pod in pods:
            snapshot = unreserve(snapshot, pod.uid)
        self._snapshot = snapshot
        self._groups: dict[object, list[Pod]] = {}
        for pod in pods:
            self._groups.setdefault(_shape(pod), []).append(pod)
        self._used: set[str] = set()
        self._members: list[PlannedMember] = []
        self._left: list[Pod] = []
        self._why = ""

    def made(self) -> GangPlan:
        for alike in sorted(self._groups.values(), key=_largest_first):
            self._place(alike)
        is_late = bool(self._left) and self._given.is_late()
        return GangPlan(tuple(self._members), tuple(self._left), LATE if is_late else self._why, is_late)

    def _place(self, pods: list[Pod]) -> None:
        """Places pods of one shape."""
        first = pods[0]
        if first.request is None:
            return self._leave(pods, first.malformed)
        refuses = self._given.standings.of_pod(first).refuses
        if refuses:
            return self._leave(pods, "the namespace has spent its GPU budget")
        rooms = self._rooms(first, len(pods))
        while pods and rooms:
            name = self._next(rooms, len(pods))
            taken = 0
            for pod in pods[: rooms.pop(name)]:
                capped = self._caps.refusal(pod, self._snapshot)
                if capped is not None:
                    return self._leave(pods[taken:], capped.sentence)
                placement = _placed(pod, self._snapshot.node(name), self._given.policies(pod))
                if placement is None:
                    break
                self._snapshot = assume(self._snapshot, pod, name, placement)
                self._members.append(PlannedMember(pod, name, placement))
                taken += 1
            if taken:
                self._used.add(name)
            pods = pods[taken:]
        return self._leave(pods, NO_ROOM)

    def _next(self, rooms: Mapping[str, int], count: int) -> str:
        """The fullest node that takes this many pods, else the one that takes the most."""
        enough = [each for each in rooms if rooms[each] >= count]
        if enough:
            return min(enough, key=lambda each: (each not in self._used, rooms[each], each))
        return max(rooms, key=lambda each: (rooms[each], each in self._used, each))

    def _leave(self, pods: Iterable[Pod], why: str) -> None:
        more = list(pods)
        self._left += more
        if more:
            self._why = why

    def _rooms(self, pod: Pod, most: int) -> dict[str, int]:
        """How many pods of this shape each node takes, of the nodes that take any."""
        policy, known, found = self._given.policies(pod), dict[object, int](), dict[str, int]()
        picky = pod.request is None or is_picky(pod.request)
        for node in self._candidates(pod):
            key = None if picky else _likeness(pod, node)
            room = known.get(key) if key is not None else None
            if room is None:
                if self._given.is_late():
                    break
                room = _room(pod, node, policy, most)
                if key is not None:
                    known[key] = room
            if room and not self._caps.refused_nodes(pod, (node.name,), self._snapshot):
                found[node.name] = room
        return found

    def _candidates(self, pod: Pod) -> Iterator[NodeInfo]:
        """The nodes with cards that kube-scheduler would offer if it had room there."""
        for node in offered(pod, self._snapshot):
            if node.node_object is not None and node.node_object.cards and not node.closed:
                yield self._without_promised(node)

    def _without_promised(self, node: NodeInfo) -> NodeInfo:
        """The node, where reservations of pods that still wait count as kube-scheduler will count them."""
        reserved = [each for each in node.allocations.values() if each.state == "reserved"]
        for each in reserved:
            pod = self._snapshot.pods.get(each.uid)
            if pod is not None:
                full = replace(each, amounts=pod.amounts, cpu_milli=pod.cpu_milli, others=pod.others)
                node = with_allocation(node, full)
        return node


def _room(pod: Pod, node: NodeInfo, policy: Policy, most: int) -> int:
    """How many such pods the node takes, at most ``most``."""
    for count in range(most):
        placement = _placed(pod, node, policy)
        if placement is None:
            return count
        node = with_allocation(
            node, allocation_of(replace(pod, uid=f"{pod.uid}/{count}"), placement, "assumed")
        )
    return most


def _placed(pod: Pod, node: NodeInfo, policy: Policy) -> Placement | None:
    """The pod's cards on the node; None where the node, or kube-scheduler's sums of it, have no room."""
    if pod.request is None or is_short(node, pod.amounts) or host_lack(pod, node):
        return None
    found = fit(pod.request, node, policy)
    return None if isinstance(found, Refusal) else found


def _likeness(pod: Pod, node: NodeInfo) -> object | None:
    """Equal for nodes that take as many pods of this shape, unless it names cards or models; None: not known
    without trying."""
    if pod.request is None or node.node_object is None:
        return None
    shape = shape_for(pod.request, node)
    if isinstance(shape, Refusal):
        return shape
    others = tuple(each.others for each in node.allocations.values() if each.others)
    return shape, node.left, node.cpu_left, node.node_object.others, node.non_gpu.others, others


def _shape(pod: Pod) -> object:
    """Equal for pods that each node takes alike."""
    return pod.request, pod.amounts, pod.cpu_milli, pod.others, pod.node_constraints


def _largest_first(alike: Sequence[Pod]) -> tuple[int, int, str]:
    pod = alike[0]
    least = least_milli(pod.request) if pod.request is not None else 0
    return -least, -pod.cpu_milli, min(each.uid for each in alike)
