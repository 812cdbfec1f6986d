"""The laws of cards: none is given twice, no cap is exceeded."""

from collections import Counter
from dataclasses import dataclass

from tests.story.balances import GROUP, Room
from tests.story.law import Law
from tests.story.people import Facts, most_milli
from tests.story.pods import SimPod
from tests.timekeeper.oracle import Terms
from timekeeper.core.values import Placement


@dataclass
class CardLaws(Law):
    """Of what pods hold."""

    def bound(self) -> None:
        """kube-scheduler has tried every pod once."""
        if self.simulation.bindings:
            self._no_card_is_given_twice()
            self._no_binding_exceeds_a_cap()
        if "cap" in self.simulation.extender.reasons.values():
            self._who_waits_for_a_cap_would_exceed_it()

    def _no_card_is_given_twice(self) -> None:
        it, found = self.simulation, dict[tuple[str, str], Room]()
        for pod in it.server.pods.values():
            if pod.runs and pod.placement is not None:
                take(found, it.mib[pod.node], pod.node, pod.placement)
        for room in found.values():
            assert room.share_used <= 1000
            assert room.mib_used <= room.mib

    def _no_binding_exceeds_a_cap(self) -> None:
        """By the caps that the extender knew, and what was held at that moment."""
        it, held = self.simulation, self._held()
        for each in reversed(it.bindings):
            for subject, facts in self._caps_of(each.pod.namespace):
                assert facts.most is None or held[subject] <= facts.most, subject
                assert facts.most_of_pod is None or each.pod.held_milli <= facts.most_of_pod
                self.kinds["capped"] += facts.most is not None
            for subject in self._subjects_of(each.pod.namespace):
                held[subject] -= each.pod.held_milli

    def _who_waits_for_a_cap_would_exceed_it(self) -> None:
        it, held = self.simulation, self._held()
        for uid, why in it.extender.reasons.items():
            pod = it.server.pods[uid]
            if why == "cap":
                self.kinds["waits for a cap"] += 1
                most, own = most_milli(pod.work.limits, it.sizes), self._reserved_milli(pod)
                assert any(
                    (facts.most is not None and held[subject] - own + most > facts.most)
                    or (facts.most_of_pod is not None and most > facts.most_of_pod)
                    for subject, facts in self._caps_of(pod.namespace)
                )

    def _subjects_of(self, namespace: str) -> list[str]:
        """The namespace, and its group if it has one."""
        group = self.simulation.known[namespace].group
        return [namespace, GROUP + group] if group else [namespace]

    def _caps_of(self, namespace: str) -> list[tuple[str, Facts]]:
        known = self.simulation.known
        if known[namespace].observes:
            return []
        return [(subject, known[subject]) for subject in self._subjects_of(namespace)]

    def _held(self) -> Counter[str]:
        """What the pods of each namespace and group hold, unweighted, reserved cards included."""
        it, found = self.simulation, Counter[str]()
        for pod in it.server.pods.values():
            milli = pod.held_milli if pod.runs else self._reserved_milli(pod)
            for subject in self._subjects_of(pod.namespace):
                found[subject] += milli
        return found

    def _reserved_milli(self, pod: SimPod) -> int:
        its = pod.reserved
        if its is None or pod.node or pod.is_leaving:
            return 0
        return self.simulation.rate_of(pod, its.node, its.placement, Terms())


def take(found: dict[tuple[str, str], Room], mib: dict[str, int], node: str, placement: Placement) -> None:
    """Adds the placement to what is taken of each card."""
    for _, slices in placement.containers:
        for each in slices:
            room = found.get((node, each.uuid)) or Room(mib[each.uuid])
            found[node, each.uuid] = room.less(each.share_milli, each.memory_mib)
