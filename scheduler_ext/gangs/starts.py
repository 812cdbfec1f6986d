"""Starts gangs: keeps cards for all members at once, and takes their gates. One thread, in the replica that
leads.

All that lasts is what the pods say (`snapshot.gang_table`); the rest is a memory of values. So if a process
is killed between two calls, no member gets a node without a plan (filter refuses it), and a successor plans
anew. Functions of values decide: `following`, `starting`, `ending`, `next_plan`, `sentence`. Here it is done.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.gangs import changes, ending, following, next_plan, starting
from scheduler_ext.gangs.capacity import PlanInput, never_text
from scheduler_ext.gangs.drains import GangDrains
from scheduler_ext.gangs.held_cards import HeldCards
from scheduler_ext.gangs.memory import Memory, Seen, StartSettings
from scheduler_ext.gangs.next_plan import Loose
from scheduler_ext.gangs.owners import GangOwners
from scheduler_ext.gangs.plan import GangPlan, lack_text, place_text, plan
from scheduler_ext.gangs.sentence import tell
from scheduler_ext.log import EventReason, Log
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.gang_table import GangKey, Gangs, GangState, gang_key
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import QueueKey
from timekeeper.core.object_names import timestamp

STEP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWiring:
    """What the starts work with. ``group``: the minimum of a PodGroup, by namespace and name (`PodGroups`);
    ``given``: what a plan for this pod's gang reads of this snapshot;
    ``policies``: the policy of a pod; ``order``: the one order of waiting pods; ``tell``: says of a gang what
    it waits for, or why it leaves; ``started``: one of this size has, these seconds after its first pod;
    ``steady_ms``: a monotonic clock, ``now_ms``: the one of objects' times."""

    cache: ClusterCache
    gangs: Gangs
    group: Callable[[str], int | None]
    given: Callable[[Snapshot, Pod], PlanInput]
    policies: Callable[[Pod], Policy]
    order: Callable[[Pod], QueueKey]
    calls: GangCalls
    drains: GangDrains
    leads: Callable[[], bool]
    tell: Callable[[GangState, Sequence[Pod], EventReason, str], object]
    started: Callable[[int, int], object]
    steady_ms: Callable[[], int]
    now_ms: Callable[[], int]
    log: Log
    settings: StartSettings = field(default_factory=StartSettings)


class GangStarts:
    """`tried`, `bound`, `mark_of` and `lack` may be called from any thread. ``_tried``, ``_bound``: as in
    `Seen`; ``_whole``: gangs whose last needed Binding is made, until the next step; ``_given_back``: those
    for which cards were given back, likewise."""

    def __init__(self, wiring: StartWiring) -> None:
        self._w = wiring
        self._owners = GangOwners(wiring.calls, wiring.group)
        self._memory = Memory()
        self._tried, self._bound, self._whole = set[str](), set[str](), set[GangKey]()
        self._given_back = set[GangKey]()
        self.plans: Counter[str] = Counter(fits=0, none=0)
        self.failures: Counter[str] = Counter({"some-bound": 0, "none-bound": 0, "not-ready": 0})
        self.evictions: Counter[str] = Counter(done=0, refused=0, unclear=0)

    # what others ask

    def run(self, stop: threading.Event) -> None:
        """Start gangs until ``stop``."""
        while not stop.wait(STEP_S):
            self.step()

    def tried(self, uid: str) -> None:
        """kube-scheduler has asked about this member."""
        self._tried.add(uid)

    def bound(self, pod: Pod) -> None:
        """The member's Binding is made."""
        if (key := gang_key(pod)) is not None:
            self._bound.add(pod.uid)
            if self.mark_of(pod):
                self._whole.add(key)

    def mark_of(self, pod: Pod) -> str:
        """The mark that the pod's Binding writes: it is the last one that its gang needs, or a later one; ""
        if others are needed."""
        key = gang_key(pod)
        known = None if key is None else self.state(self._w.cache.snapshot, key)
        if known is None:
            return ""
        gang, is_late = known
        made = {mate.uid for mate in gang.waiting if mate.uid in self._bound}
        is_enough = len({mate.uid for mate in gang.bound} | made | {pod.uid}) >= gang.needed
        return timestamp(self._w.now_ms()) if is_enough or is_late else ""

    def lack(self, pod: Pod) -> str:
        """Why the pod's gang waits; "" if that is not known."""
        return self._memory.told.get(gang_key(pod) or "") or ""

    # what the displacer asks, in its thread

    def due(self) -> list[HeldCards]:
        """The gangs for which others may leave, in order."""
        return next_plan.waiting(self._memory, self._seen(), self._w.order)

    def state(self, snapshot: Snapshot, key: GangKey) -> tuple[GangState, bool] | None:
        """What the gang's pods say, and whether it has started; None: no member lives."""
        gang = self._state(snapshot.pods, key)
        return None if gang is None else (gang, gang.marks > 0 or self._memory.of(key).has_run)

    def given(self, snapshot: Snapshot, gang: GangState) -> PlanInput:
        """What a plan for the gang reads."""
        at_ms, avoided = self._w.steady_ms(), self._memory.of(gang.key).avoided
        nodes = frozenset(name for name, until_ms in avoided.items() if at_ms < until_ms)
        return replace(self._w.given(snapshot, gang.first), avoided=nodes)

    def given_back(self, key: GangKey) -> None:
        """Cards that were reserved for the gang were given back."""
        self._given_back.add(key)

    @property
    def waiting(self) -> int:
        """How many gangs have a member without a node."""
        return sum(bool(gang.waiting) for gang in self._memory.open.values())

    @property
    def drains(self) -> Mapping[str, int]:
        """Drains by their end."""
        return {str(how): count for how, count in self._w.drains.turns.ended.items()}

    @property
    def kept_milli(self) -> int:
        """What plans keep, in thousandths of a card."""
        snapshot = self._w.cache.snapshot
        uids = [uid for start in self._memory.starts.values() for uid in start.places]
        kept = (allocation for uid in uids if (allocation := snapshot.allocation(uid)) is not None)
        return sum(allocation.held_milli for allocation in kept if allocation.state == "planned")

    # one step

    def step(self) -> None:
        """Look at the gangs that changed or wait, and do what is due."""
        if not self._w.leads():
            self._stand_by()
            return
        seen = self._seen()
        self._follow(seen)
        self._memory = starting.adopted(self._memory, seen)
        for key in tuple(self._memory.starts):
            self._go_on(key, seen)
        self._displace()
        loose = next_plan.loose_pods(self._memory, self._seen())
        if self._w.settings.autoscales:
            self._do(next_plan.take_turn(self._memory, self._seen(), self._w.order, self._w.drains.has_grown))
        self._plan_first()
        if seen.at_ms >= self._memory.next_plan_ms:
            self._plan_next(loose, seen.at_ms)
        self._w.drains.follow(self._memory.open, self._memory.short, self._w.now_ms())
        if self._w.settings.ready_for_ms:
            for gang in self._memory.open.values():
                self._do(ending.end_pending(self._memory, gang, seen))
        self._do(tell(self._memory, self._seen(), loose))

    def _stand_by(self) -> None:
        """Another replica leads, and may start gangs."""
        memory = self._memory
        if not memory.pods:
            return
        self._w.cache.end_planned([uid for start in memory.starts.values() for uid in start.places])
        known = {key: replace(history, has_run=False) for key, history in memory.histories.items()}
        self._memory = replace(memory, pods=Map(), open={}, starts={}, histories=Map(known))
        self._owners = GangOwners(self._w.calls, self._w.group)

    def _seen(self) -> Seen:
        return Seen(
            snapshot=self._w.cache.snapshot,
            at_ms=self._w.steady_ms(),
            now_ms=self._w.now_ms(),
            tried=frozenset(self._tried),
            bound=frozenset(self._bound),
            settings=self._w.settings,
        )

    def _follow(self, seen: Seen) -> None:
        pods = seen.snapshot.pods
        changed = self._w.gangs.changed(self._memory.pods, pods)
        whole = tuple(self._whole)  # other threads add meanwhile
        self._whole.difference_update(whole)
        states = {key: self._state(pods, key) for key in changed}
        for key, gang in states.items():
            if gang is None:
                self._owners.forget(key)
        made = [gang for key in whole if (gang := self._state(pods, key)) is not None]
        self._memory, begun = following.follow(self._memory, states, made, seen)
        for gang in begun:
            if gang.key in self._memory.starts:
                self._w.started(gang.gang.size, max(0, seen.now_ms - gang.first.asked_ms) // 1000)
        self._bound -= {uid for uid in seen.bound if (pod := pods.get(uid)) is None or pod.node}
        self._tried -= {uid for uid in seen.tried if (pod := pods.get(uid)) is None or not pod.waits}
        self._do(following.marks(self._memory, seen))
        self._do(following.those_beside(self._memory, self._w.gangs.by_key(pods), seen))
        gang = self._owners.follow(self._memory.open, seen.at_ms)
        if gang is not None:
            self._memory = replace(self._memory, open={**self._memory.open, gang.key: gang})

    def _state(self, pods: Map[Pod], key: GangKey) -> GangState | None:
        gang = self._w.gangs.state(pods, key)
        return None if gang is None else self._owners.known(gang)

    def _go_on(self, key: GangKey, seen: Seen) -> None:
        gang = self._memory.open.get(key)
        if gang is None:  # all have a node
            self._memory = self._memory.with_start(key, None)
            return
        self._do(starting.go_on(self._memory, gang, seen, self._w.policies))
        start = self._memory.starts.get(key)
        if start is not None:
            self._w.calls.open_gates(starting.gates(start, gang))
        if start is not None and seen.at_ms >= start.until_ms and ending.is_due(start, gang, self._seen()):
            if gang.lacks_members and not start.is_over:
                gang = self._owners.read(gang, seen.at_ms)
            self._do(ending.end(self._memory, gang, seen))

    def _displace(self) -> None:
        """A gang for which others leave needs no drain."""
        for key in [self._given_back.pop() for _ in range(len(self._given_back))]:
            if (gang := self._memory.open.get(key)) is not None:
                self._do(ending.given_back(self._memory, gang, self._seen()))
        for gang in self._memory.open.values():
            if gang.reserved:
                self._w.drains.fits(gang.key, self._w.now_ms())

    def _plan_first(self) -> None:
        """Plan for gangs and members that come before others' turns."""
        if next_plan.is_busy(self._memory, seen := self._seen()):
            return
        for gang, pods in next_plan.first(self._memory, seen):
            history = self._memory.of(gang.key)
            history = replace(history, late=history.late | {pods[0].uid})
            self._memory = self._memory.with_history(gang.key, history)
            self._try(gang, pods)

    def _plan_next(self, loose: Loose, at_ms: int) -> None:
        """Plan for those that wait, in order, until one does not fit."""
        self._memory, turns = next_plan.in_turn(self._memory, self._seen(), self._w.order)
        for gang, pods in turns:
            began = self._seen()
            if next_plan.is_busy(self._memory, began):
                return
            if not self._memory.of(gang.key).has_run and next_plan.is_full(loose, gang.namespace, pods):
                continue
            if not self._try(gang, pods):
                took_ms = self._w.steady_ms() - began.at_ms
                self._memory = next_plan.passed_over(self._memory, gang, at_ms, took_ms)
                return

    def _try(self, gang: GangState, pods: Sequence[Pod]) -> bool:
        """Keep cards for these members, if enough of them fit."""
        made, seen, given = self._plan(gang, pods)
        does_fit, never = next_plan.suffices(self._memory, gang, made), ""
        if not does_fit and not self._memory.of(gang.key).has_run:
            never = never_text(pods, gang.needed, given, self._w.settings.autoscales)
        self.plans["fits" if does_fit else "none"] += 1
        if not does_fit and seen.at_ms >= self._memory.of(gang.key).logged_ms:
            self._w.log("gang", gang=gang.key, pods=0, why=never or lack_text(made))
        self._do(next_plan.planned(self._memory, gang, pods, made, seen, never))
        return does_fit

    def _plan(self, gang: GangState, pods: Sequence[Pod]) -> tuple[GangPlan, Seen, PlanInput]:
        seen = self._seen()
        given = self.given(seen.snapshot, gang)
        return plan(pods, given, gang.bound), seen, given

    def _do(self, decision: changes.Decision) -> None:
        self._memory, wanted = decision
        for change in wanted:
            match change:
                case changes.KeepCards():
                    self._keep(change)
                case changes.EndPlans(uids, failure):
                    self._w.cache.end_planned(uids)
                    self.failures.update([failure] if failure else [])
                case changes.PlanAnew(gang, pods):
                    made, seen, _ = self._plan(gang, pods)
                    self._do(starting.planned_anew(self._memory, gang, made, seen))
                case changes.OpenGates(pods):
                    self._w.calls.open_gates(pods)
                case changes.Mark(pod):
                    self._w.calls.mark(pod)
                case changes.Evict(gang, why, is_told, failure):
                    self.failures.update([failure] if failure else [])
                    text = f"Evicted by Bursar: {why}"
                    self.evictions.update(self._w.calls.evict(gang.bound, text))
                    if is_told:
                        self._w.tell(gang, gang.bound, "GangEviction", text)
                    self._w.log("gang-ends", gang=gang.key, evicted=len(gang.bound), why=why)
                case changes.TellGang(gang, text):
                    self._w.tell(gang, gang.waiting, "GangWaits", text)
                case changes.Grow(None):
                    self._w.drains.end_growth()
                case changes.Grow(gang, until_ms) if gang is not None:
                    self._w.drains.grow(gang, self._w.now_ms(), until_ms)

    def _keep(self, wanted: changes.KeepCards) -> None:
        members = [(member.pod, member.node, member.placement) for member in wanted.plan.members]
        if not self._w.cache.keep_planned(members, wanted.snapshot):
            return  # the cluster has changed meanwhile; the next step plans again
        self._memory, key = wanted.kept, wanted.gang.key
        if wanted.begins:
            self._w.drains.fits(key, self._w.now_ms())
        opened = self._w.calls.open_gates(wanted.gates).count("done")
        if wanted.begins:
            self._w.log("gang", gang=key, pods=len(members), opened=opened, where=place_text(wanted.plan))
