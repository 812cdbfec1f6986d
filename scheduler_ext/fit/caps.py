"""Caps: how much the pods of a namespace, or of a group's namespaces, may hold of cards at one time.

What counts is `Snapshot.held`: every allocation, of any scheduler, and cards that are reserved for a
waiting pod; and what device claims hold, as the timekeeper's standings have it. The pod in question is not
counted against itself. Before its cards are known its least need is compared; `exceeded` compares exactly,
once its cards are assumed.

A cap stays in force while the standing is UNKNOWN, because it is a setting and not an account. A budget in
observe mode caps nothing; its pods count in the sums of its group.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from scheduler_ext.fit.refusal import Refusal, capped
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.budgets.policy import group_key
from timekeeper.core.rating.held import depends_on_card, least_milli, most_milli
from timekeeper.core.standings import Caps
from timekeeper.core.values import GPURequest


@dataclass(frozen=True, slots=True)
class CapLimit:
    """The most that the pod may hold now, in milli-GPU, and the refusal of more. A negative limit: the others
    alone exceed the cap."""

    milli: int
    refusal: Refusal
    cap_milli: int
    group: str = ""  # key of the group's budget entry if the cap is the group's


class CapChecks:
    """Compares pods with the caps of ``standings``."""

    def __init__(self, standings: Callable[[], NamespaceStandings]) -> None:
        self._standings = standings
        self._sums = GroupSums()

    def refusal(self, pod: Pod, snapshot: Snapshot, ahead: Iterable[Pod] = ()) -> Refusal | None:
        """Why the pod may have no card now, whichever; None if a cap does not forbid it. ``ahead``: waiting
        pods that go first."""
        if pod.request is None:
            return None
        limits = self._limits(pod, snapshot, False, ahead)
        return _first_over(least_milli(pod.request), limits) if limits else None

    def is_capped(self, pod: Pod, node: str, snapshot: Snapshot) -> bool:
        """True if a cap refuses the pod its cards now, on the named node ("": on every node)."""
        if self.refusal(pod, snapshot) is not None:
            return True
        return node != "" and bool(self.refused_nodes(pod, [node], snapshot))

    def refused_nodes(self, pod: Pod, nodes: Iterable[str], snapshot: Snapshot) -> dict[str, Refusal]:
        """Of these nodes those on whose cards the pod would exceed a cap: its request names an amount, which
        is a larger part of a smaller card."""
        request = pod.request
        if request is None or not depends_on_card(request):
            return {}
        limits = self._limits(pod, snapshot, False)
        if _first_over(most_milli(request), limits) is None:
            return {}
        return dict(_too_small(request, nodes, snapshot, limits))

    def tightest(self, pod: Pod, snapshot: Snapshot) -> tuple[dict[str, int], str]:
        """The figures of the cap that leaves the pod least, in milli-GPU, and the key of the group's budget
        entry if it is the group's. Both are empty without a cap."""
        limits = self._limits(pod, snapshot, False)
        if pod.request is None or not limits:
            return {}, ""
        least = min(limits, key=lambda each: each.milli)
        figures = {
            "capMilli": least.cap_milli,
            "heldByOthersMilli": least.cap_milli - least.milli,
            "needsAtLeastMilli": least_milli(pod.request),
        }
        return figures, least.group

    def exceeded(self, pod: Pod, snapshot: Snapshot, observed: bool = False) -> Refusal | None:
        """The cap that is exceeded with the pod's allocation in this snapshot; None: none. ``observed``: by a
        budget in observe mode instead."""
        allocation = snapshot.allocation(pod.uid)
        if allocation is None:
            return None
        return _first_over(allocation.held_milli, self._limits(pod, snapshot, observed))

    def _limits(
        self, pod: Pod, snapshot: Snapshot, observed: bool, ahead: Iterable[Pod] = ()
    ) -> tuple[CapLimit, ...]:
        standings = self._standings()
        standing = standings.of(pod.namespace)
        if not standing.caps.is_set or (standing.watched is not None) is not observed:
            return ()
        group = standing.caps.group
        first = [each for each in ahead if each.uid != pod.uid and snapshot.allocation(each.uid) is None]
        own = snapshot.allocation(pod.uid)
        own_milli = own.held_milli if own is not None else 0

        def others_here() -> int:
            promised = _least_of(each for each in first if each.namespace == pod.namespace)
            return (snapshot.held.get(pod.namespace) or 0) + standing.claims_milli + promised - own_milli

        def others_in_group() -> int:
            promised = _least_of(e for e in first if standings.of(e.namespace).caps.group == group)
            return self._sums.of(group, snapshot.held, standings) + promised - own_milli

        return tuple(_limits(pod.namespace, standing.caps, others_here, others_in_group))


class GroupSums:
    """What the pods and claims of each group hold. A later version of the map costs what has changed, not
    what there is. May be called from any thread: what it keeps is replaced as a whole."""

    def __init__(self) -> None:
        self._last: tuple[Map[int], NamespaceStandings, dict[str, int]] | None = None

    def of(self, group: str, held: Map[int], standings: NamespaceStandings) -> int:
        """The group's sum, in milli-GPU."""
        last = self._last
        if last is not None and last[0] is held and last[1] is standings:
            return last[2].get(group, 0)
        if last is None or last[1] is not standings:
            last = Map(), standings, _claims_by_group(standings)
        sums = dict(last[2])
        for namespace in held.changed_since(last[0]):
            its = standings.of(namespace).caps.group
            more = (held.get(namespace) or 0) - (last[0].get(namespace) or 0)
            sums[its] = sums.get(its, 0) + more
        self._last = held, standings, sums
        return sums.get(group, 0)


def _claims_by_group(standings: NamespaceStandings) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in standings.listed.values():
        if each.claims_milli:
            sums[each.caps.group] = sums.get(each.caps.group, 0) + each.claims_milli
    return sums


def _limits(
    namespace: str, caps: Caps, others_here: Callable[[], int], others_in_group: Callable[[], int]
) -> Iterator[CapLimit]:
    """First the limits that no waiting changes."""
    own, of_group = caps.own, caps.of_group
    if own.pod_milli is not None:
        yield _limit("namespace", namespace, "maxGPUsPerPod", own.pod_milli, 0)
    if of_group.pod_milli is not None:
        yield _limit("group", caps.group, "maxGPUsPerPod", of_group.pod_milli, 0)
    if own.total_milli is not None:
        yield _limit("namespace", namespace, "maxGPUs", own.total_milli, others_here())
    if of_group.total_milli is not None:
        yield _limit("group", caps.group, "maxGPUs", of_group.total_milli, others_in_group())


def _limit(whose: str, name: str, field: str, cap_milli: int, others_milli: int) -> CapLimit:
    group = group_key(name) if whose == "group" else ""
    return CapLimit(cap_milli - others_milli, capped(whose, name, field, cap_milli), cap_milli, group)


def _least_of(pods: Iterable[Pod]) -> int:
    return sum(least_milli(each.request) for each in pods if each.request is not None)


def _first_over(milli: int, limits: Iterable[CapLimit]) -> Refusal | None:
    return next((each.refusal for each in limits if milli > each.milli), None)


def _too_small(
    request: GPURequest, nodes: Iterable[str], snapshot: Snapshot, limits: tuple[CapLimit, ...]
) -> Iterator[tuple[str, Refusal]]:
    known: dict[tuple[int, ...], Refusal | None] = {}  # nodes of thousands have cards of a few sizes
    named = any(each.ask.resources for each in request.asks)
    for name in nodes:
        cards = snapshot.node(name).cards
        sizes = tuple([card.memory_mib for card in cards])
        if named or sizes not in known:
            known[sizes] = _first_over(least_milli(request, cards), limits)
        over = known[sizes]
        if over is not None:
            yield name, over
