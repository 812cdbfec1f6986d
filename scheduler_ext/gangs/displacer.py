"""Has others leave for gangs, in the preemptor's thread: as for a single pod, in steps that objects record.

1. Cards are reserved for each member that starts, by the condition `CardsHeld`. It names the victims, too.
2. Once the watch shows all of these conditions, the victims are evicted, by the executor of single pods.
3. When the last card is free, all conditions say since when: the gang is charged from then on, and starts.

A replica that takes over goes on from these. One gang at a time has cards reserved before its start: the
first in order for which the eviction of others helps. A member that comes later displaces by itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.controllers.preemptor import RETRY_S, Preemptor
from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.displacement import Displacement, displaced
from scheduler_ext.gangs.held_cards import (
    GiveBack,
    HeldCards,
    freed,
    held_by_gang,
    held_cards,
    next_step,
    renewed,
    reservations,
)
from scheduler_ext.gangs.plan import plan
from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.active import ActivePreemption, Result
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.snapshot.gang_table import GangKey, GangState
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.ledger.reservation import Reservation

SEEN_WITHIN_S = 5.0  # a condition that the watch does not show by then was not written
GIVES_UP_S = 3.0  # so long there must have been no way
COST = 10  # looks take at most a tenth of the time
LOOKS_AGAIN_S = 2.0  # after one without result
LOOKS_EACH_S, LOOKS_FOR_S = 0.5, 0.5  # at those that wait
RESTS_S = 60.0  # after cards were given back before a pod left
WAITS_MS, MOST_WAITS_MS = 300_000, 3_600_000  # after cards that were given back, doubled with each


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplacerWiring:
    """``due``: the gangs that wait for cards, in the one order; ``state``: what a gang's pods say, and
    whether it has started; ``given``: what a plan reads, with a second of the processor; ``failed``: called
    once when cards were reserved and given back before a start; ``deadline_ms``: of a start."""

    due: Callable[[], Sequence[HeldCards]]
    state: Callable[[Snapshot, GangKey], tuple[GangState, bool] | None]
    given: Callable[[Snapshot, GangState], PlanInput]
    failed: Callable[[GangKey], object]
    calls: GangCalls
    deadline_ms: int


@dataclass(slots=True)
class _Active:
    """What is remembered of a gang for which cards are reserved. ``written``: by UID, the version before a
    condition was written, and until when the watch is to show it, in monotonic seconds."""

    preemption: ActivePreemption
    written: dict[str, tuple[str, float]] = field(default_factory=dict)
    end: GiveBack | None = None
    again_s: float = 0.0

    def awaits(self, snapshot: Snapshot, now_s: float) -> bool:
        """Whether the watch is still to show a condition."""
        self.written = {
            uid: (version, until_s)
            for uid, (version, until_s) in self.written.items()
            if now_s < until_s and (pod := snapshot.pods.get(uid)) is not None and pod.version == version
        }
        return bool(self.written)


class GangDisplacer:
    """`step` is called by the preemptor alone; ``_snapshot`` and ``_context`` are of its last call."""

    _snapshot: Snapshot
    _context: PreemptionContext

    def __init__(self, preemptor: Preemptor, wiring: DisplacerWiring, limits: PreemptionLimits) -> None:
        self._preemptor, self._p, self._w, self._limits = preemptor, preemptor.wiring, wiring, limits
        self._active: dict[GangKey, _Active] = {}
        self._failures: dict[str, tuple[int, int]] = {}  # owner -> how often in succession, and when last
        self._looks: dict[GangKey, float] = {}  # until when there is no other look
        self._again_s = 0.0

    def step(
        self,
        reserved: Sequence[tuple[Pod, Reservation]],
        snapshot: Snapshot,
        context: PreemptionContext,
        is_worth: Callable[[Pod], bool],
    ) -> None:
        """Go on with what has been begun, and begin at most one more. ``is_worth``: whether any pod ranks
        below this one."""
        self._snapshot, self._context = snapshot, context
        gangs, now_s = held_by_gang(reserved), self._p.seconds()
        for key in [key for key in self._active if key not in gangs]:
            self._forget(key)
        for key, pods in gangs.items():
            known = self._w.state(snapshot, key)
            if known is not None:
                self._go_on(held_cards(*known, pods, snapshot))
        if now_s >= self._again_s:
            self._begin({*gangs, *self._active}, is_worth)
            ended_s = self._p.seconds()
            self._again_s = ended_s + max(LOOKS_EACH_S, COST * (ended_s - now_s))

    def _forget(self, key: GangKey) -> None:
        """No cards are reserved any more."""
        active, known = self._active[key], self._w.state(self._snapshot, key)
        if active.end is None and active.awaits(self._snapshot, self._p.seconds()):
            return
        del self._active[key]
        result: Result = "withdrawn"
        if active.end is None and known is not None and known[1]:
            self._failures.pop(known[0].owner, None)
            result = "bound"
        self._preemptor.counts.ended(active.preemption.kind, result)

    # what has been begun

    def _go_on(self, held: HeldCards) -> None:
        now_s, first = self._p.seconds(), held.reserved[0][1]
        active = self._active.get(held.gang.key)
        if active is None or active.preemption.since_ms != held.since_ms:
            active = _Active(ActivePreemption(held.lead, first.node, first.kind, held.since_ms))
            self._active[held.gang.key] = active
        if active.awaits(self._snapshot, now_s):
            return None
        if active.end is not None:
            return self._give_back(held, active, active.end)
        if now_s < active.again_s:
            return None
        wanted = next_step(held, self._context.now_ms, self._w.deadline_ms)
        if isinstance(wanted, GiveBack):
            return self._end(held, active, wanted)
        if wanted != "wait":
            is_possible = (self._reserve if wanted == "reserve" else self._free)(held, active)
            if is_possible:
                active.preemption.unblocked()
            elif active.preemption.blocked_s(now_s) >= GIVES_UP_S:
                end = GiveBack("NoWay", "it would not start once its victims have left", self._has_left(held))
                return self._end(held, active, end)
        active.again_s = max(active.again_s, now_s + min(LOOKS_AGAIN_S, COST * (self._p.seconds() - now_s)))
        return None

    def _reserve(self, held: HeldCards, active: _Active) -> bool:
        """Some have none: the choice is made anew for all. Those that have left already are free or leave.
        Returns whether the gang would start."""
        given = self._w.given(self._snapshot, held.gang)
        found = displaced(held.wanted, given, self._context, self._limits, held.gang.bound)
        if found is not None:
            new = reservations(found, held.since_ms, held.tries, self._context, self._limits)
            until_ms = max(held.until_ms, new[0][1].until_ms)
            self._write(active, [(pod, renewed(pod, each, until_ms)) for pod, each in new])
        return found is not None

    def _free(self, held: HeldCards, active: _Active) -> bool:
        """Say that the last card is free; else evict those that are still needed. Returns whether the gang
        would start."""
        given, now_ms = self._w.given(self._snapshot, held.gang), self._context.now_ms
        if plan(held.wanted, given, held.gang.bound).suffices(len(held.wanted)):
            said = [each.free_ms for _, each in held.reserved if each.free_ms is not None]
            free_ms = min(said, default=now_ms)
            late = [both for both in held.reserved if both[1].free_ms is None]
            self._write(active, [(pod, freed(pod, each, free_ms, now_ms)) for pod, each in late])
            return True
        found = displaced(held.wanted, given, self._context, self._limits, held.gang.bound, only=held.victims)
        if found is not None and found.victims:
            reservation = replace(held.reserved[0][1], since_ms=held.since_ms)
            self._preemptor.evict_victims(
                held.lead, reservation, active.preemption, found.victims, self._context
            )
        return found is not None

    def _has_left(self, held: HeldCards) -> bool:
        """Whether one of its victims has been asked to leave."""
        there, now_ms = [self._context.pods.get(uid) for uid in held.victims], self._context.now_ms
        staying = [pod for pod in there if pod is not None and pod.holding and not pod.deleting]
        is_leaving = self._preemptor.cooldown.is_leaving
        return len(staying) < len(there) or any(is_leaving(pod, now_ms) for pod in staying)

    def _end(self, held: HeldCards, active: _Active, end: GiveBack) -> None:
        """Once; then all members lose their reservations, and the owner waits."""
        active.end, lead, now_ms = end, held.lead, self._context.now_ms
        if end.is_failure:
            self._failures[held.gang.owner] = held.tries + 1, now_ms
            self._preemptor.cooldown = self._preemptor.cooldown.after_unused(lead, now_ms)
            if end.reason != "Refused" and not held.has_begun:  # else its start has counted
                self._w.failed(held.gang.key)
        self._looks[held.gang.key] = self._p.seconds() + RESTS_S
        text = f"Released the GPUs reserved for gang {held.gang.gang.name}: {end.why}."
        self._p.tell(lead, "CardsLetGo", text)
        self._give_back(held, active, end)

    def _give_back(self, held: HeldCards, active: _Active, end: GiveBack) -> None:
        tries = held.tries + end.is_failure

        def let_go(pod: Pod) -> bool:
            return self._preemptor.let_go(pod, end.reason, end.why, replace(pod.displaced, tries=tries))

        pods = [pod for pod, _ in held.reserved]
        done = self._note(active, pods, self._w.calls.together(let_go, pods))
        self._p.log("let-go", gang=held.gang.key, why=end.why, pods=done)

    # what begins

    def _begin(self, under_way: set[GangKey], is_worth: Callable[[Pod], bool]) -> None:
        began_s = self._p.seconds()
        self._looks = {key: until_s for key, until_s in self._looks.items() if began_s < until_s}
        states = [self._w.state(self._snapshot, key) for key in under_way]
        is_taken = any(known is not None and not known[1] for known in states)
        for due in self._w.due():
            now_s, key = self._p.seconds(), due.gang.key
            if now_s - began_s >= LOOKS_FOR_S:
                return None
            lead = due.lead
            passed = key in under_way or key in self._looks or (is_taken and not due.has_begun)
            if passed or not is_worth(lead) or self._waits(due, lead):
                continue
            given = self._w.given(self._snapshot, due.gang)
            found = displaced(due.wanted, given, self._context, self._limits, due.gang.bound)
            if found is not None:
                # one that fits, or does soon, starts first: those that come later wait for what is left
                return self._hold(due, lead, found) if found.victims else None
            ended_s = self._p.seconds()
            self._looks[key] = ended_s + max(LOOKS_AGAIN_S, COST * (ended_s - now_s))
        return None

    def _tried(self, due: HeldCards) -> tuple[int, int]:
        """How often in succession cards were given back for its owner, and when last."""
        noted = [(pod.displaced.tries, pod.displaced.at_ms) for pod in due.gang.waiting]
        return max(*noted, self._failures.get(due.gang.owner, (0, 0)))

    def _waits(self, due: HeldCards, lead: Pod) -> bool:
        """Whether no pod leaves for its owner yet again."""
        tries, at_ms = self._tried(due)
        waits_ms = min(MOST_WAITS_MS, WAITS_MS << tries - 1) if tries else 0
        now_ms = self._context.now_ms
        return now_ms < at_ms + waits_ms or self._context.cooldown.refuses(lead, now_ms)

    def _hold(self, due: HeldCards, lead: Pod, found: Displacement) -> None:
        since_ms = self._context.now_ms // 1000 * 1000
        new = reservations(found, since_ms, self._tried(due)[0], self._context, self._limits)
        active = _Active(ActivePreemption(lead, new[0][1].node, new[0][1].kind, since_ms))
        self._active[due.gang.key] = active
        self._write(active, new)
        text = f"Reserved GPUs for {len(new)} members of gang {due.gang.gang.name}; evicting"
        self._p.tell(lead, "CardsHeld", f"{text} {len(found.victims)} pods to free them.")
        self._p.log("hold", gang=due.gang.key, victims=",".join(pod.full_name for pod in found.victims))

    def _write(self, active: _Active, new: Sequence[tuple[Pod, Reservation]]) -> None:
        done = self._w.calls.together(lambda both: self._preemptor.hold(*both), new)
        if self._note(active, [pod for pod, _ in new], done) < len(new):
            active.again_s = self._p.seconds() + RETRY_S

    def _note(self, active: _Active, pods: Sequence[Pod], done: Iterable[bool]) -> int:
        """The watch will show those that were written, or may have been; returns how many these are."""
        written = [pod for pod, is_done in zip(pods, done, strict=True) if is_done]
        until_s = self._p.seconds() + SEEN_WITHIN_S
        active.written |= {pod.uid: (pod.version, until_s) for pod in written}
        return len(written)
