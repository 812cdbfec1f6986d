"""Starts gangs: keeps cards for all members at once, and takes their gates. One thread, in the replica that
leads.

All that lasts is what the pods say (`snapshot.gang_table`). A plan is memory. So if a process is killed
between two calls, no member gets a node without a plan (filter refuses it), and a successor plans anew for
those that have none. A gang of which some have a node, and none bears the mark, starts: by the deadline as
many as it needs have one, or those that have are evicted together. Then others get the cards, and a later
plan avoids these nodes.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.gangs.drains import GangDrains
from scheduler_ext.gangs.owners import GangOwners
from scheduler_ext.gangs.plan import GangPlan, PlannedMember, lack_text, missing_cards, place_text, plan
from scheduler_ext.gangs.rooms import PlanInput, placed_on
from scheduler_ext.log import EventReason, Log
from scheduler_ext.model.pod import Pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.gang_table import GangKey, Gangs, GangState, gang_key
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import QueueKey
from timekeeper.core import names
from timekeeper.core.gangs import UNKNOWN_SIZE, is_grouped
from timekeeper.core.object_names import timestamp

STEP_S = 0.5
AGAIN_MS = 5_000  # at most, until the next plan after one in vain
COST = 10  # plans in vain take at most a tenth of the time
ANEW_MS = 10_000  # between two plans for members whose node does not take them any more
STEADY_MS = 5_000  # so long no member of a gang has left before one of another owner may join it
LONGEST_MS = 600_000  # a start lasts, while kube-scheduler has not tried a member
REST_MS, MAX_REST_MS, FORGOTTEN_MS = 15_000, 600_000, 3_600_000  # after a failed start, doubled with each
AVOIDED_MS = 600_000
# between two starts of gangs of a namespace that came to nothing, doubled with each
WINDOW_MS, MAX_WINDOW_MS = 300_000, 1_800_000
MOST_OPENED = 512  # planned members that kube-scheduler has not tried, before more gates go
MOST_LOOSE = (
    1_024  # members without gates that it has tried, of gangs that have not started, in all namespaces
)
MIN_MARKS = 2  # so one node that is lost takes no gang's last mark
PAID_MS = 5_000  # the timekeeper pays within, where the account can
LACKS_MS, TURN_MS = 30_000, 900_000  # before an autoscaler sees a gang, and for how long the next waits


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    """``deadline_ms``: of a start; ``ready_for_ms``: how long after it a member may stay Pending, 0: for
    ever; ``autoscales``: gates go for an autoscaler, though the gang does not fit."""

    deadline_ms: int = 60_000
    ready_for_ms: int = 0
    autoscales: bool = False


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


@dataclass(slots=True)
class Start:
    """``places``: of members without a node, by UID, each with its node as it was looked at last;
    ``until_ms``: its deadline, steady; ``joins``: of members of a gang that has started; ``where``: for
    people; ``is_over``: it came to nothing, and its members are evicted."""

    places: dict[str, PlannedMember]
    began_ms: int
    until_ms: int
    joins: bool = False
    where: str = ""
    planned_ms: int = 0
    is_over: bool = False
    seen: dict[str, NodeInfo] = field(default_factory=dict)


class GangStarts:
    """`tried`, `bound`, `mark_of` and `lack` may be called from any thread."""

    def __init__(self, wiring: StartWiring) -> None:
        self._w, self._settings = wiring, wiring.settings
        self._owners = GangOwners(wiring.calls, wiring.group)
        self._pods: Map[Pod] = Map()  # as the last step saw them
        self._open: dict[GangKey, GangState] = {}  # gangs that wait, start, or lack a mark
        self._ran: set[GangKey] = set()  # those that have started, while a member lives
        self._whole: set[GangKey] = set()  # whose last needed Binding is made, until the next step
        self._starts: dict[GangKey, Start] = {}
        self._tried: set[str] = set()  # UIDs of waiting members that kube-scheduler has tried
        self._late: set[str] = set()  # UIDs of waiting members of gangs that run, planned once
        self._bound: set[str] = set()  # UIDs whose Binding is made, and which the watch may not show yet
        self._since_ms: dict[GangKey, int] = {}  # since when it has members that may start, and none leaves
        self._looked: set[GangKey] = set()  # planned in vain in this round
        self._next_plan_ms = 0
        self._lacks: dict[GangKey, str] = {}  # what it lacked last
        self._short_ms: dict[GangKey, int] = {}  # since when it lacks cards
        # by namespace, in this step: pods without a gate that get no node, of gangs that have not started
        self._loose: Counter[str] = Counter()
        # how many starts came to nothing, and when the last one ended
        self._failed: dict[GangKey, tuple[int, int]] = {}
        # by namespace: how many of its starts in a row came to nothing, and when the last of these began
        self._fruitless: dict[str, tuple[int, int]] = {}
        self._avoided: dict[GangKey, dict[str, int]] = {}  # nodes, and until when
        self._told: dict[GangKey, str] = {}
        self._logged_ms: dict[GangKey, int] = {}  # when a plan in vain is logged again
        self._marks_ms: dict[str, int] = {}  # UID -> until when its mark is not written again
        self._left: dict[GangKey, tuple[str, int]] = {}  # why its members were evicted, and when last
        self._turn: tuple[GangKey, int] = "", 0  # whose it is, and until when
        self._had_turn: set[GangKey] = set()  # in this round
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
        it = None if key is None else self._state(self._w.cache.snapshot.pods, key)
        if it is None:
            return ""
        made = {mate.uid for mate in it.waiting if mate.uid in self._bound}
        is_enough = len({mate.uid for mate in it.bound} | made | {pod.uid}) >= it.needed
        return timestamp(self._w.now_ms()) if is_enough or self._has_begun(it) else ""

    def lack(self, pod: Pod) -> str:
        """Why the pod's gang waits; "" if that is not known."""
        return self._told.get(gang_key(pod) or "", "")

    @property
    def waiting(self) -> int:
        """How many gangs have a member without a node."""
        return sum(bool(it.waiting) for it in self._open.values())

    @property
    def drains(self) -> Mapping[str, int]:
        """Drains by their end."""
        return {str(how): count for how, count in self._w.drains.turns.ended.items()}

    @property
    def kept_milli(self) -> int:
        """What plans keep, in thousandths of a card."""
        snapshot = self._w.cache.snapshot
        kept = (snapshot.allocation(uid) for start in list(self._starts.values()) for uid in start.places)
        return sum(each.held_milli for each in kept if each is not None and each.state == "planned")

    # one step

    def step(self) -> None:
        """Look at the gangs that changed or wait, and do what is due."""
        if not self._w.leads():
            self._w.cache.end_planned([uid for start in self._starts.values() for uid in start.places])
            self._starts, self._pods, self._open, self._ran = {}, Map(), {}, set()
            self._owners = GangOwners(self._w.calls, self._w.group)
            return
        snapshot, at_ms = self._w.cache.snapshot, self._w.steady_ms()
        self._follow(snapshot, at_ms)
        for it in list(self._open.values()):
            if self._is_starting(it) and it.key not in self._starts:
                self._starts[it.key] = Start({}, at_ms, at_ms + self._settings.deadline_ms)
        for key in list(self._starts):
            self._go_on(key, snapshot, at_ms)
        self._loose = self._count_loose()
        self._take_turns(at_ms)
        self._plan_late(at_ms)
        if at_ms >= self._next_plan_ms:
            self._plan_next(at_ms)
        short = {key for key in self._short_ms if key in self._open and key not in self._starts}
        self._w.drains.follow(self._open, short, self._w.now_ms())
        for it in list(self._open.values()):
            self._tell(it)

    def _follow(self, snapshot: Snapshot, at_ms: int) -> None:
        changed = self._w.gangs.changed(self._pods, snapshot.pods)
        self._pods = snapshot.pods
        for key in tuple(self._whole):  # the marked pod may be lost before a step has seen it
            self._whole.discard(key)
            it = self._state(snapshot.pods, key)
            if it is not None and key not in self._ran:
                self._ran.add(key)
                self._has_started(it)
        for key in changed:
            it = self._state(snapshot.pods, key)
            if it is None:
                self._forget(key)
                continue
            if not it.bound and not any(pod.uid in self._bound for pod in it.waiting):
                self._ran.discard(key)  # its next start is a new one
            if it.marks and key not in self._ran:
                self._ran.add(key)
                self._has_started(it)
            is_short_of_marks = it.bound and it.marks < min(MIN_MARKS, len(it.bound))
            is_pending = self._settings.ready_for_ms and any(pod.is_pending for pod in it.bound)
            if it.waiting or is_short_of_marks or is_pending:
                self._open[key] = it
            else:
                self._open.pop(key, None)
            is_there = bool(it.paid) if self._has_begun(it) else len(it.bound) + len(it.paid) >= it.needed
            if is_there and not it.leaving:
                self._since_ms.setdefault(key, at_ms)
            else:
                self._since_ms.pop(key, None)
        there = snapshot.pods
        for uid in tuple(self._bound):  # other threads add to both sets meanwhile
            if (pod := there.get(uid)) is None or pod.node:
                self._bound.discard(uid)
        for known in (self._tried, self._late):
            for uid in tuple(known):
                if (pod := there.get(uid)) is None or not pod.waits:
                    known.discard(uid)
        self._failed = {key: known for key, known in self._failed.items() if at_ms < known[1] + FORGOTTEN_MS}
        self._fruitless = {
            name: known for name, known in self._fruitless.items() if at_ms < known[1] + FORGOTTEN_MS
        }
        self._marks_ms = {uid: until_ms for uid, until_ms in self._marks_ms.items() if at_ms < until_ms}
        for it in list(self._open.values()):
            self._heal(it, at_ms)
        self._owners.follow(self._open, at_ms)

    def _state(self, pods: Map[Pod], key: GangKey) -> GangState | None:
        it = self._w.gangs.state(pods, key)
        return None if it is None else self._owners.known(it)

    def _forget(self, key: GangKey) -> None:
        """No member lives."""
        for known in (self._open, self._since_ms, self._lacks, self._short_ms, self._avoided, self._told):
            known.pop(key, None)
        self._starts.pop(key, None)  # its cards are free since its pods wait no more
        for noted in (self._left, self._logged_ms):
            noted.pop(key, None)
        self._owners.forget(key)
        for keys in (self._ran, self._looked, self._had_turn):
            keys.discard(key)

    def _has_started(self, it: GangState) -> None:
        seconds = max(0, self._w.now_ms() - it.first.asked_ms) // 1000
        if it.key in self._starts:
            self._w.started(it.gang.size, seconds)
        self._failed.pop(it.key, None)
        self._fruitless.pop(it.namespace, None)

    def _heal(self, it: GangState, at_ms: int) -> None:
        """A gang that has started keeps enough living marks, and one that has all it needs has started."""
        if not (self._has_begun(it) or len(it.bound) >= it.needed):
            return
        unmarked = [pod for pod in it.bound if not (pod.is_marked or pod.uid in self._marks_ms)]
        marked = len(it.bound) - len(unmarked)  # or the watch will show it
        for pod in unmarked[: max(0, MIN_MARKS - marked)]:
            self._marks_ms[pod.uid] = at_ms + AGAIN_MS
            self._w.calls.mark(pod)

    def _is_starting(self, it: GangState) -> bool:
        """Whether some have a node, and too few."""
        return bool(it.bound) and not self._has_begun(it) and len(it.bound) < it.needed

    def _has_begun(self, it: GangState) -> bool:
        return it.marks > 0 or it.key in self._ran

    # a start

    def _go_on(self, key: GangKey, snapshot: Snapshot, at_ms: int) -> None:
        start, it = self._starts[key], self._open.get(key) or self._state(snapshot.pods, key)
        if it is None:
            return self._forget(key)
        waiting = {pod.uid: pod for pod in it.waiting}
        start.places = {uid: planned for uid, planned in start.places.items() if uid in waiting}
        if not start.places and not self._is_starting(it):
            del self._starts[key]
            return None
        start.joins = start.joins and not self._is_starting(it)  # those that it joined may all be lost
        left = [pod for pod in it.paid if pod.uid not in start.places]
        is_broken = any(self._is_broken(waiting[uid], start, snapshot) for uid in start.places)
        is_due = at_ms >= start.planned_ms + ANEW_MS or not start.planned_ms
        if (is_broken or (left and self._is_starting(it))) and is_due and not start.is_over:
            self._plan_rest(it, start, at_ms)
        opens = it.paid if is_grouped(it.gang.key) else [waiting[uid] for uid in start.places]
        self._w.calls.open_gates([pod for pod in opens if pod.gates == (names.GANG_GATE,)])
        if at_ms >= start.until_ms:
            untried = [uid for uid in start.places if not (waiting[uid].unschedulable or uid in self._tried)]
            if not untried or at_ms >= start.began_ms + LONGEST_MS:
                self._end(it, start, at_ms)
        return None

    def _is_broken(self, pod: Pod, start: Start, snapshot: Snapshot) -> bool:
        """Whether the node does not take the member any more."""
        node, allocation = snapshot.node(start.places[pod.uid].node), snapshot.allocation(pod.uid)
        if allocation is None or allocation.state != "planned":
            return allocation is None
        if start.seen.get(pod.uid) is node:
            return False
        there = node.node_object
        if there is None or node.closed or not pod.node_constraints.admit(node.name, there.node_labels):
            return True
        if placed_on(pod, as_found_by(pod.uid, node), self._w.policies(pod)) is None:
            return True
        start.seen[pod.uid] = node
        return False

    def _plan_rest(self, it: GangState, start: Start, at_ms: int) -> None:
        """Plan anew for all members of a start that have no node."""
        start.planned_ms = at_ms
        self._w.cache.end_planned(start.places)
        snapshot = self._w.cache.snapshot
        pods = it.paid if not start.joins else tuple(pod for pod in it.paid if pod.uid in start.places)
        start.places = {}
        made = self._made(it, pods, snapshot)
        is_enough = start.joins or made.suffices(it.needed - len(it.bound))
        if is_enough and self._keep(it, made, start, snapshot):
            # kube-scheduler has refused those without a gate where they were to be
            self._w.calls.open_gates([each.pod for each in made.members if not each.pod.gated])

    def _end(self, it: GangState, start: Start, at_ms: int) -> None:
        """Its deadline is over. A gang that has not started holds no card: what is not evicted now, because
        it has changed or is protected, is so later."""
        if any(pod.uid in self._bound for pod in it.waiting):
            return  # the watch will show it with its node
        if it.lacks_members and not start.is_over:
            it = self._owners.read(it, at_ms)
        has_failed = not (start.joins or self._has_begun(it) or len(it.bound) >= it.needed)
        if not start.is_over:
            self._w.cache.end_planned(start.places)
            nodes = {each.node: at_ms + AVOIDED_MS for each in start.places.values()}
            self._avoided.setdefault(it.key, {}).update(nodes)
            self._failed[it.key] = self._failed.get(it.key, (0, 0))[0] + 1, at_ms
            if has_failed:
                self.failures["some-bound" if it.bound else "none-bound"] += 1
                count, began_ms = self._fruitless.get(it.namespace, (0, -1))
                if start.began_ms > began_ms:  # those that began together are one
                    self._fruitless[it.namespace] = count + 1, at_ms
        if not (has_failed and it.bound):
            del self._starts[it.key]
            return
        start.places, start.is_over, start.until_ms = {}, True, at_ms + AGAIN_MS
        few = f"{len(it.bound)} of the {it.needed} pods with which gang {it.gang.name} starts had a node"
        self._let_go(it, f"{few} in time. The gang starts whole, or none of its pods holds cards.")

    def _let_go(self, it: GangState, why: str) -> None:
        text = f"Evicted by Bursar: {why}"
        self.evictions.update(self._w.calls.evict(it.bound, text))
        if it.bound and self._left.get(it.key, ("", 0))[0] != text:
            self._w.tell(it, it.bound, "GangEviction", text)
        self._left[it.key] = text, self._w.steady_ms()
        self._w.log("gang-ends", gang=it.key, evicted=len(it.bound), why=why)

    # the next start

    def _plan_late(self, at_ms: int) -> None:
        """Plan for members that join those that run, once each before the others' turns: each is a single
        pod."""
        if self._is_busy():
            return
        for it in list(self._open.values()):
            pods = self._due(it, at_ms) if self._has_begun(it) else ()
            if pods and pods[0].uid not in self._late:
                self._late.add(pods[0].uid)
                self._try(it, pods, at_ms)

    def _plan_next(self, at_ms: int) -> None:
        """Plan for those that wait, in order, until one does not fit. In a round each has one plan in vain:
        else those that come first would have all of the time."""
        due = {it.key: pods for it in self._open.values() if (pods := self._due(it, at_ms))}
        if due and self._looked.issuperset(due):
            self._looked.clear()
        turn = self._turn[0]
        left = [key for key in due if key not in self._looked]
        ahead = sorted(left, key=lambda key: (key != turn, self._place(key)))
        for key in ahead:
            it, began_ms = self._open[key], self._w.steady_ms()
            if self._is_busy():
                return
            if not self._has_begun(it) and self._is_full(it.namespace, due[key]):
                continue
            if not self._try(it, due[key], at_ms):
                took_ms = self._w.steady_ms() - began_ms
                self._next_plan_ms = at_ms + min(AGAIN_MS, COST * took_ms)
                self._looked.add(key)
                return

    def _place(self, key: GangKey) -> QueueKey:
        it = self._open[key]
        first, least = it.first, min(pod.priority for pod in it.waiting)
        return self._w.order(first if first.priority == least else replace(first, priority=least))

    def _due(self, it: GangState, at_ms: int) -> tuple[Pod, ...]:
        """The members for which a plan is to be made; empty: none now."""
        start = self._starts.get(it.key)
        if not it.waiting or (start is not None and not start.joins):
            return ()
        if it.conflict and not self._has_begun(it):  # of one that has grown, further members say its new size
            return ()
        if self._rests(it.key, at_ms):
            return ()
        if self._has_begun(it):
            is_steady = at_ms >= self._since_ms.get(it.key, at_ms) + STEADY_MS
            planned = start.places if start is not None else {}
            late = (pod for pod in it.paid if pod.uid not in planned)
            return tuple(pod for pod in late if is_steady or it.runs_with(pod))[:1]
        return it.paid if len(it.paid) >= it.needed and not self._pauses(it.namespace, at_ms) else ()

    def _rests(self, key: GangKey, at_ms: int) -> bool:
        count, ended_ms = self._failed.get(key, (0, 0))
        return count > 0 and at_ms < ended_ms + min(MAX_REST_MS, REST_MS * 2 ** (count - 1))

    def _pauses(self, namespace: str, at_ms: int) -> bool:
        """Whether gangs of the namespace that have not started keep no cards now, for starts of theirs came
        to nothing: they keep some for one deadline in each window."""
        count, ended_ms = self._fruitless.get(namespace, (0, 0))
        window_ms = min(MAX_WINDOW_MS, WINDOW_MS * 2 ** (count - 1))
        return count > 0 and at_ms < ended_ms + window_ms - self._settings.deadline_ms

    def _is_busy(self) -> bool:
        """Whether more gates would leave kube-scheduler too many pods that it has not tried."""
        pods = self._w.cache.snapshot.pods
        planned = [pods.get(uid) for start in self._starts.values() for uid in start.places]
        return sum(pod is not None and not self._is_tried(pod) for pod in planned) > MOST_OPENED

    def _is_tried(self, pod: Pod) -> bool:
        return pod.unschedulable or pod.uid in self._tried

    def _is_full(self, namespace: str, pods: Sequence[Pod]) -> bool:
        """Whether these would be too many pods of the namespace that have no gate and get no node. Each
        namespace that has such has its share of all, and may have those of one gang."""
        loose = self._loose[namespace]
        is_more = loose > 0 and any(pod.gated for pod in pods)
        return is_more and loose + len(pods) > MOST_LOOSE // len(self._loose)

    def _count_loose(self) -> Counter[str]:
        loose = Counter[str]()
        for it in self._open.values():
            if not self._has_begun(it):
                loose[it.namespace] += sum(not pod.gated and self._is_loose(it, pod) for pod in it.waiting)
        return +loose  # without namespaces that have none

    def _is_loose(self, it: GangState, pod: Pod) -> bool:
        start = self._starts.get(it.key)
        return start is None or pod.uid not in start.places or self._is_tried(pod)

    def _try(self, it: GangState, pods: tuple[Pod, ...], at_ms: int) -> bool:
        """Keep cards for these members, if enough of them fit."""
        snapshot = self._w.cache.snapshot
        made = self._made(it, pods, snapshot)
        joins = self._has_begun(it)
        if not made.suffices(1 if joins else max(1, it.needed)):
            self.plans["none"] += 1
            self._lacks[it.key] = why = lack_text(made)
            if at_ms >= self._logged_ms.get(it.key, at_ms):
                self._logged_ms[it.key] = at_ms + AGAIN_MS
                self._w.log("gang", gang=it.key, pods=0, why=why)
            if missing_cards(made) and not joins:
                self._short_ms.setdefault(it.key, at_ms)
            else:
                self._short_ms.pop(it.key, None)
            return False
        self.plans["fits"] += 1
        self._lacks.pop(it.key, None)
        self._short_ms.pop(it.key, None)
        start = self._starts.get(it.key) or Start({}, at_ms, 0, joins)
        start.began_ms, start.until_ms = at_ms, at_ms + self._settings.deadline_ms
        start.planned_ms = at_ms
        if not self._keep(it, made, start, snapshot):
            return True  # the cluster has changed meanwhile; the next step plans again
        self._starts[it.key] = start
        self._left.pop(it.key, None)
        self._w.drains.fits(it.key, self._w.now_ms())
        planned = [each.pod for each in made.members]
        # kube-scheduler tries no pod of a PodGroup while one of it has a gate
        others = pods if is_grouped(it.gang.key) else ()
        left = [pod for pod in others if pod.gated and pod.uid not in start.places]
        opened = self._w.calls.open_gates([*planned, *left])
        self._w.log(
            "gang", gang=it.key, pods=len(made.members), opened=opened.count("done"), where=start.where
        )
        return True

    def _made(self, it: GangState, pods: Sequence[Pod], snapshot: Snapshot) -> GangPlan:
        now_ms = self._w.steady_ms()
        avoided = self._avoided.get(it.key, {})
        nodes = frozenset(name for name, until_ms in avoided.items() if now_ms < until_ms)
        given = replace(self._w.given(snapshot, it.first), avoided=nodes)
        return plan(pods, given, it.bound)

    def _keep(self, it: GangState, made: GangPlan, start: Start, seen: Snapshot) -> bool:
        members = [(each.pod, each.node, each.placement) for each in made.members]
        if not self._w.cache.keep_planned(members, seen):
            return False
        start.places |= {each.pod.uid: each for each in made.members}
        start.where = place_text(made)
        return True

    # an autoscaler

    def _take_turns(self, at_ms: int) -> None:
        """An autoscaler counts pods without gates alone. So one gang that lacks cards loses its gates though
        it does not fit; filter refuses its pods until all do."""
        if not self._settings.autoscales:
            return
        key, until_ms = self._turn
        it = self._open.get(key)
        if it is None or at_ms >= until_ms or key in self._starts or self._has_begun(it):
            self._turn = "", 0
            self._w.drains.end_growth()
            lacking = [each for each, since_ms in self._short_ms.items() if at_ms >= since_ms + LACKS_MS]
            lacking = [each for each in lacking if each in self._open and self._due(self._open[each], at_ms)]
            if not lacking:
                return
            if self._had_turn.issuperset(lacking):
                self._had_turn.clear()
            key = min((each for each in lacking if each not in self._had_turn), key=self._place)
            self._had_turn.add(key)
            it, now_ms = self._open[key], self._w.now_ms()
            self._turn = key, at_ms + TURN_MS
            self._w.drains.grow(it, now_ms, now_ms + TURN_MS)
            self._w.calls.open_gates([pod for pod in it.paid if pod.gated])
        if self._w.drains.has_grown:
            self._looked.discard(key)

    # people

    def _tell(self, it: GangState) -> None:
        if self._settings.ready_for_ms:
            self._end_pending(it)
        text = self._sentence(it) if it.waiting else ""
        if text and self._told.get(it.key) != text:
            self._w.tell(it, it.waiting, "GangWaits", text)
        self._told[it.key] = text

    def _end_pending(self, it: GangState) -> None:
        marked_ms = [pod.marked_ms for pod in it.bound if pod.is_marked]
        pending = [pod.name for pod in it.bound if pod.is_pending]
        if not (pending and marked_ms and self._w.now_ms() >= min(marked_ms) + self._settings.ready_for_ms):
            return
        asked_ms = self._left.get(it.key, ("", None))[1]
        if asked_ms is None or self._w.steady_ms() >= asked_ms + AGAIN_MS:
            self.failures["not-ready"] += asked_ms is None
            self._let_go(it, f"{pending[0]} of gang {it.gang.name} has not run in time after its start.")

    def _sentence(self, it: GangState) -> str:
        """What the gang waits for."""
        return f"Gang {it.gang.name} {'; '.join(filter(None, self._parts(it)))}."

    def _parts(self, it: GangState) -> Iterator[str]:
        start, living = self._starts.get(it.key), it.living
        has_begun = self._has_begun(it)
        # members of a gang that has grown keep the size that they were created with
        size = living if it.gang.size == UNKNOWN_SIZE else max(it.gang.size, living)
        least = f", of which {it.needed} start at least" if it.needed < size else ""
        yield (
            f"runs: {len(it.bound)} of {size} members have a node"
            if has_begun
            else f"starts whole: {living} of {size} members exist{least}"
        )
        if it.gang.size == UNKNOWN_SIZE:
            yield f"there is no PodGroup {it.gang.name} in namespace {it.namespace}"
        elif it.conflict and not has_begun:
            yield it.conflict
        elif start is not None and start.places:
            yield f"{len(start.places)} have cards {start.where}, and get their nodes"
        elif foreign := next(
            (gate for pod in it.waiting for gate in pod.gates if gate not in names.GATES), ""
        ):
            yield f"another scheduling gate keeps a member: {foreign}"
        elif unpaid := [pod for pod in it.waiting if names.BUDGET_GATE in pod.gates]:
            if self._w.now_ms() - max(pod.asked_ms for pod in unpaid) >= PAID_MS:
                yield f"{len(unpaid)} wait for their budget or their turn"
        elif not has_begun and self._pauses(it.namespace, self._w.steady_ms()):
            yield f"a start in namespace {it.namespace} came to nothing, and the next comes in some minutes"
        elif self._rests(it.key, self._w.steady_ms()):
            yield "its last start came to nothing, and it is tried again soon"
        elif not has_begun and self._is_full(it.namespace, it.paid):
            yield f"too many pods of gangs in namespace {it.namespace} that had no place wait without a gate"
        else:
            yield (lack := self._lacks.get(it.key, ""))
            others = any(start.places for key, start in self._starts.items() if key != it.key)
            yield "cards are kept for starts of other gangs" if lack and others else ""
            yield self._w.drains.text(it.key)
