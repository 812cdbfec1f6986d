"""The laws of declared time and of idle pods."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from tests.story.balances import GROUP
from tests.story.law import Law
from tests.story.people import Facts
from tests.story.pods import SimPod
from tests.story.simulation import IDLE_AFTER_MS, IDLE_GRACE_MS, PDB_GRACE_MS
from tests.timekeeper.worlds import MINUTE, SECOND
from timekeeper.core.decisions import EVICTED

# between two evictions of one evictor, and its longest pause after an attempt at a pod without an answer
SPACE_MS, LATEST_MS = 30 * SECOND, 12 * MINUTE
# what was written is looked at again after half a minute; a settler may have just started
SPARED_MS = 2 * MINUTE


@dataclass
class DeclaredLaws(Law):
    """``ticked`` follows each tick of the settler that was written."""

    _before: dict[str, tuple[object, ...]] = field(default_factory=dict)  # account -> what it rested on
    # account -> the pods that had reserved when it was last reduced
    _earlier: dict[str, set[str]] = field(default_factory=dict)

    def ticked(self) -> None:
        """What pods that were released for their declared time have used and may still use never exceeds what
        was granted, in any period, but for what had been reserved before the grant was reduced or the budget
        changed: then nothing more is reserved."""
        it = self.simulation
        now_ms, of = it.timekeeper.held_view.at_ms, it.accounts
        for subject, facts in it.in_force.items():
            granted = of.granted(subject, now_ms)
            members = sorted(
                name for name in it.names if it.in_force[name].group == subject.removeprefix(GROUP)
            )
            rests_on = (of.account(subject, now_ms), facts, members)
            before, self._before[subject] = self._before.get(subject), (*rests_on, granted)
            if before is not None and self._is_reduced(before, (*rests_on, granted)):
                self._earlier[subject] = of.reserving() | it.timekeeper.database.declared.keys()
            if granted is None or facts.observes:
                continue
            reserved = of.promised(subject, now_ms)
            self.kinds["reserved"] += reserved > 0
            if reserved > granted and reserved:
                earlier = of.promised(subject, now_ms, self._earlier.get(subject, set()))
                assert reserved <= earlier, f"{subject}: {reserved} reserved and charged, {granted} granted"

    def _is_reduced(self, before: tuple[object, ...], now: tuple[object, ...]) -> bool:
        if before[1:3] != now[1:3]:
            return True
        was, granted = before[3], now[3]
        return before[0] == now[0] and isinstance(was, int) and isinstance(granted, int) and granted < was


@dataclass
class EndingLaws(Law):
    """Of pods past their declared time, and of idle ones."""

    _decided: int = 0  # records that were looked at

    def stepped(self) -> None:
        """A step of all has ended."""
        it = self.simulation
        running = [each for each in it.server.pods.values() if each.runs and not each.is_leaving]
        late = [each for each in running if self._is_ended_late(each)]
        unused = [each for each in running if self._is_ended_unused(each)]
        for law, those in (("outlived", late), ("unused", unused)):
            for pod in running:
                is_so = pod in those and not it.faults.last(it.clock())
                lasts_ms = self.lasts(law, pod.uid, is_so)
                assert lasts_ms <= LATEST_MS + len(those) * SPACE_MS, f"{pod.name} stays ({law})"
        for pod in running:
            is_noted = pod.idle_until_ms is not None or pod.is_reclaimable
            is_so = is_noted and (pod.is_used or self._idle(pod) == "")
            is_heard = it.silent.get(pod.node, 0) <= it.clock() and not it.faults.last(it.clock())
            lasts_ms = self.lasts("spared", pod.uid, is_so and is_heard)
            assert lasts_ms <= SPARED_MS, f"{pod.name} is in use, or left alone, and keeps its notice"

    def outlived(self, asked: Sequence[tuple[SimPod, str]]) -> None:
        """The evictor of pods past their declared time has made these leave."""
        it = self.simulation
        for pod, how in asked:
            self.kinds["outlived"] += 1
            facts = it.in_force[pod.namespace]
            assert facts.overtime == "evict"
            assert not facts.observes
            assert pod.length_ms
            over_ms = it.clock() - (pod.bound_ms or 0) - pod.length_ms
            assert over_ms >= (PDB_GRACE_MS if pod.work.protects else 0)
            assert (how == "deleted") == pod.work.protects
            self._is_recorded(pod, "OvertimeEviction")

    def idled(self, asked: Sequence[tuple[SimPod, str]]) -> None:
        """The evictor of idle pods has made these leave, and may have marked others."""
        it, now_ms = self.simulation, self.simulation.clock()
        for pod, how in asked:
            self.kinds["idle: evicted"] += 1
            assert (how, pod.work.protects, self._idle(pod)) == ("evicted", False, "evict")
            assert pod.idle_until_ms is not None
            assert now_ms >= pod.idle_until_ms
            self._is_unused(pod)
            self._is_recorded(pod, "IdleEviction")
        for pod in it.server.pods.values():
            if pod.is_noted_ms == now_ms and pod.is_reclaimable:
                self.kinds["idle: reclaimable"] += 1
                assert self._idle(pod) == "reclaim"
                self._is_unused(pod)
            elif pod.is_noted_ms == now_ms and pod.idle_until_ms is not None:
                self.kinds["idle: warned"] += 1
                assert self._idle(pod) in ("reclaim", "evict")
                assert self._unused_ms(pod) >= IDLE_AFTER_MS
                assert pod.idle_until_ms >= now_ms + IDLE_GRACE_MS

    def _is_unused(self, pod: SimPod) -> None:
        """Reports have shown it idle for long enough, and none has shown it in use since its warning."""
        assert self._unused_ms(pod) >= IDLE_AFTER_MS
        assert self.simulation.clock() - (pod.unused_since_ms or 0) >= IDLE_AFTER_MS + IDLE_GRACE_MS

    def _is_recorded(self, pod: SimPod, reason: str) -> None:
        it = self.simulation
        just_now = takewhile(
            lambda each: each.at_ms > it.clock() - LATEST_MS, reversed(it.timekeeper.decisions)
        )
        made = any((e.uid, e.kind, e.reason) == (pod.uid, EVICTED, reason) for e in just_now)
        assert made or it.clock() < it.faults.api_ms or it.was_killed, f"{pod.name} left without a decision"

    def _unused_ms(self, pod: SimPod) -> int:
        """For how long the reports of its node have shown it idle."""
        assert pod.work.idles, f"no report shows how {pod.name} uses its cards"
        return -1 if pod.unused_since_ms is None else pod.reported_ms - pod.unused_since_ms

    def _idle(self, pod: SimPod) -> str:
        facts: Facts = self.simulation.in_force[pod.namespace]
        return "" if facts.observes else facts.idle

    def _is_ended_late(self, pod: SimPod) -> bool:
        facts, late_ms = self.simulation.in_force[pod.namespace], PDB_GRACE_MS if pod.work.protects else 0
        is_over = self.simulation.clock() >= (pod.bound_ms or 0) + pod.length_ms + late_ms
        return bool(pod.length_ms) and facts.overtime == "evict" and not facts.observes and is_over

    def _is_ended_unused(self, pod: SimPod) -> bool:
        is_heard = self.simulation.silent.get(pod.node, 0) <= self.simulation.clock()
        if not pod.work.idles or pod.work.protects or not is_heard or self._idle(pod) != "evict":
            return False
        return self._unused_ms(pod) >= IDLE_AFTER_MS + IDLE_GRACE_MS
