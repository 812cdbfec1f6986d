"""The laws of cards: none is given twice, no cap is exceeded."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.story.balances import GROUP, Room
from tests.story.law import Law
from tests.story.people import Facts, Limits, needs_of
from tests.story.pods import SimPod
from tests.timekeeper.oracle import Terms
from timekeeper.core.values import Placement


@dataclass
class CardLaws(Law):
    """Of what pods hold."""

    def stepped(self) -> None:
        """A step of all has ended."""
        if self.simulation.bindings:
            self._no_card_is_given_twice()
        self._caps_hold()

    def _no_card_is_given_twice(self) -> None:
        it, found = self.simulation, dict[tuple[str, str], Room]()
        for pod in it.server.pods.values():
            if pod.runs and pod.placement is not None:
                take(found, it.mib[pod.node], pod.node, pod.placement)
        for room in found.values():
            assert room.share_used <= 1000
            assert room.mib_used <= room.mib

    def _caps_hold(self) -> None:
        """No binding exceeds a cap that the extender knew, and a pod that waits for a cap would exceed it."""
        it = self.simulation
        if not it.bindings and "cap" not in it.extender.reasons.values():
            return
        held = self._held()
        for each in it.bindings:
            for subject, facts in self._caps_of(each.pod.namespace):
                assert facts.most is None or held[subject] <= facts.most, subject
                assert facts.most_of_pod is None or each.pod.held_milli <= facts.most_of_pod
                self.kinds["capped"] += facts.most is not None
        for uid, why in it.extender.reasons.items():
            pod = it.server.pods.get(uid)
            if why == "cap" and pod is not None and not pod.is_leaving:
                self.kinds["waits for a cap"] += 1
                most = most_milli(pod.work.limits, it.sizes)
                own = self._reserved_milli(pod)
                assert any(
                    (facts.most is not None and held[subject] - own + most > facts.most)
                    or (facts.most_of_pod is not None and most > facts.most_of_pod)
                    for subject, facts in self._caps_of(pod.namespace)
                )

    def _caps_of(self, namespace: str) -> Iterator[tuple[str, Facts]]:
        known = self.simulation.known
        facts = known[namespace]
        if facts.observes:
            return
        yield namespace, facts
        if facts.group:
            yield GROUP + facts.group, known[GROUP + facts.group]

    def _held(self) -> Counter[str]:
        """What the pods of each namespace and group hold, unweighted, reserved cards included."""
        it, found = self.simulation, Counter[str]()
        for pod in it.server.pods.values():
            milli = pod.held_milli if pod.runs else self._reserved_milli(pod)
            found[pod.namespace] += milli
            group = it.known[pod.namespace].group
            if group:
                found[GROUP + group] += milli
        return found

    def _reserved_milli(self, pod: SimPod) -> int:
        its = pod.reserved
        if its is None or pod.node or pod.is_leaving:
            return 0
        return self.simulation.rate_of(pod, its.node, its.placement, Terms())


@cache
def most_milli(limits: Limits, sizes: frozenset[int]) -> int:
    """The most that a pod can hold on cards of these sizes in MiB, unweighted."""
    return max(
        sum(n.cards * max(n.share, -(-1000 * n.of(size) // size)) for n in needs_of(limits)) for size in sizes
    )


def take(found: dict[tuple[str, str], Room], mib: dict[str, int], node: str, placement: Placement) -> None:
    """Adds the placement to what is taken of each card."""
    for _, slices in placement.containers:
        for each in slices:
            room = found.get((node, each.uuid)) or Room(mib[each.uuid])
            found[node, each.uuid] = room.less(each.share_milli, each.memory_mib)
