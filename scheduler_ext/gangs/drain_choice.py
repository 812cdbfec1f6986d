"""Which cards to keep empty for a gang that does not fit, so that it starts soonest. Pure.

If enough pods declare an end before the drain would be over, the cards are those of the plan for the first
moment at which the gang fits without the pods that have ended by then: Slurm's reservation for the first job
of the queue. Otherwise it is not known when cards become free, and the nodes with the fewest cards in use
are drained: of the nodes in this order as many as have `WIDTH` times the cards that are missing, for the pods
that end first are not known, and most of the time of GPUs is that of few long pods.

A plan answers each question, so topologies, caps and CPU count as they do when the gang starts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.domains import label_value
from scheduler_ext.gangs.plan import GangPlan, plan
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.allocation import Allocation
from scheduler_ext.snapshot.node_info import NodeInfo, whole_left
from scheduler_ext.snapshot.snapshot import Snapshot, undrain, without_holders

WIDTH = 4  # times the cards that are missing
# their pods do not end by themselves, so their nodes are drained last
ENDLESS = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet")


@dataclass(frozen=True, slots=True)
class Chosen:
    """``cards``: nodes, with the UUIDs of the cards to keep empty there; ``starts_ms``: when the gang fits if
    pods end as they declare, 0: not known."""

    cards: tuple[tuple[str, tuple[str, ...]], ...]
    starts_ms: int = 0


def choose(
    pods: Sequence[Pod], given: PlanInput, until_ms: int, now_ms: int, beside: Iterable[Pod] = ()
) -> Chosen | None:
    """The cards to keep empty for all of these members, which do not fit now. None: no cards that become
    free would be enough, or none were found in time. ``until_ms``: when the drain would end at the latest;
    ``beside``: other members, which run."""
    base, there = undrain(given.snapshot), tuple(beside)
    ends = known_ends(base, until_ms, now_ms)

    def found(emptied: Snapshot) -> GangPlan | None:
        # what a cap allows does not grow: for a gang that waits for its cap nothing is drained
        made = plan(pods, replace(given, snapshot=replace(emptied, held=base.held)), there)
        return made if made.suffices(len(pods)) else None

    times = sorted({*ends.values()})
    at, made = _first(len(times), lambda at: found(_without_ended(base, ends, times[at])))
    if made is not None:
        return Chosen(_cards(made, base, _without_ended(base, ends, times[at])), times[at])
    rest = _without_ended(base, ends, until_ms)
    nodes = _emptiest_first(pods, rest)
    at, made = _first(len(nodes), lambda at: found(_without_pods_on(rest, nodes[: at + 1])))
    if made is None or given.is_late():
        return None
    wide = {each.name: tuple(card.uuid for card in each.cards) for each in _wide(pods[0], made, nodes, base)}
    needed = dict(_cards(made, base, _without_pods_on(rest, nodes[: at + 1])))
    return Chosen(tuple(sorted({**needed, **wide}.items())))


def _wide(pod: Pod, made: GangPlan, nodes: Sequence[NodeInfo], snapshot: Snapshot) -> Iterator[NodeInfo]:
    """Of these nodes the first whose pods hold enough cards and may end, where the gang may be. ``snapshot``:
    as it is now, with the pods that declare to end."""
    label = pod.gang.topology if pod.gang is not None else ""
    near = {label_value(snapshot.node(member.node), label) for member in made.members} if label else set()
    wanted = WIDTH * _missing(made, snapshot)
    for node in nodes:
        if wanted > 0 and (not label or label_value(node, label) in near) and not _is_endless(node, snapshot):
            yield node
            wanted -= _in_use(node)


def _missing(made: GangPlan, snapshot: Snapshot) -> int:
    """How many cards of the plan are in use."""
    return sum(len(cards - _untouched(snapshot.node(name))) for name, cards in _by_node(made).items())


def _untouched(node: NodeInfo) -> set[str]:
    both = zip(node.cards, node.free_by_card, strict=True)
    return {card.uuid for card, free in both if free is not None and free.untouched}


def known_ends(snapshot: Snapshot, until_ms: int, now_ms: int) -> dict[str, int]:
    """When pods that hold cards end at the latest, by UID, of those that end by then. A pod that runs on
    after its time may do so for ever."""
    found = {}
    for node in snapshot.nodes.values():
        for uid, allocation in node.allocations.items():
            end_ms = _end_ms(allocation, snapshot.pods.get(uid), now_ms)
            if now_ms < end_ms <= until_ms:
                found[uid] = end_ms
    return found


def _end_ms(allocation: Allocation, pod: Pod | None, now_ms: int) -> int:
    """0: not known. Cards that are reserved for a pod are used by it then."""
    if allocation.state == "orphaned":
        return allocation.until_ms
    if pod is None or allocation.state == "reserved":
        return 0
    declared_ms = (pod.started_ms or now_ms) + pod.declared_ms if pod.declared_ms else 0
    return min((each for each in (declared_ms, pod.leaves_ms) if each), default=0)


def _first(count: int, found: Callable[[int], GangPlan | None]) -> tuple[int, GangPlan | None]:
    """The least of the first numbers from which on a plan is found, with this plan; None: for no number. The
    more is free, the more fits, so few of them are tried: 0, 1, 3, 7, and then halves."""
    low, high = 0, 0
    made = None
    while low < count:
        made = found(high)
        if made is not None or high == count - 1:
            break
        low, high = high + 1, min(2 * high + 1, count - 1)
    if made is None:
        return 0, None
    while low < high:
        middle = (low + high) // 2
        earlier = found(middle)
        if earlier is None:
            low = middle + 1
        else:
            high, made = middle, earlier
    return high, made


def _without_ended(snapshot: Snapshot, ends: Mapping[str, int], at_ms: int) -> Snapshot:
    return without_holders(snapshot, [uid for uid, end_ms in ends.items() if end_ms <= at_ms])


def _without_pods_on(snapshot: Snapshot, nodes: Sequence[NodeInfo]) -> Snapshot:
    there = (each for node in nodes for each in node.allocations.values())
    return without_holders(snapshot, [each.uid for each in there if not each.is_kept])


def _emptiest_first(pods: Sequence[Pod], snapshot: Snapshot) -> list[NodeInfo]:
    """The nodes that some of these pods may use and others hold cards of, in the order in which to drain."""
    constraints = {pod.node_constraints for pod in pods}
    found = [
        node
        for node in snapshot.nodes.values()
        if node.allocations
        and not node.closed
        and (there := node.node_object) is not None
        and there.cards
        and any(each.admit(node.name, there.node_labels) for each in constraints)
    ]
    return sorted(found, key=lambda node: (_is_endless(node, snapshot), _in_use(node), node.name))


def _is_endless(node: NodeInfo, snapshot: Snapshot) -> bool:
    there = (snapshot.pods.get(uid) for uid in node.allocations)
    return any(pod is not None and pod.controller.partition("/")[0] in ENDLESS for pod in there)


def _in_use(node: NodeInfo) -> int:
    return sum(free is not None for free in node.free_by_card) - whole_left(node)


def _cards(made: GangPlan, now: Snapshot, then: Snapshot) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The members' cards. Where some of them are in use now, all cards of the node: whichever becomes free
    first is one of the gang's."""
    return tuple(
        (name, tuple(_kept(now.node(name), then.node(name), cards)))
        for name, cards in sorted(_by_node(made).items())
    )


def _by_node(made: GangPlan) -> dict[str, set[str]]:
    """The members' cards, by node."""
    found: dict[str, set[str]] = {}
    for member in made.members:
        slices = (each for _, slices in member.placement.containers for each in slices)
        found.setdefault(member.node, set()).update(each.uuid for each in slices)
    return found


def _kept(now: NodeInfo, then: NodeInfo, cards: set[str]) -> Iterator[str]:
    gone = [each for uid, each in now.allocations.items() if uid not in then.allocations]
    waits = any(each.unnamed or any(uuid in cards for uuid, _ in each.uses) for each in gone)
    return (card.uuid for card in now.cards if waits or card.uuid in cards)
