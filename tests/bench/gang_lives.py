"""A cluster for a week in which single pods and gangs arrive, wait, run and end.

Everything that decides is Bursar's: the fit and the rank of filter and prioritize, a gang's plan, the choice
of the cards to drain, which gang has the drain, and who may pass. kube-scheduler's part is CPU and memory,
and the controllers' that all pods of a gang are created together. Single pods are tried whenever cards become
free, in the order of their arrival; gangs are looked for every five seconds in which something has changed.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.drain_choice import choose
from scheduler_ext.gangs.plan import plan
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.model.node import OURS, Node, read_node
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BINPACK, Policy
from scheduler_ext.scoring.rank import ranked
from scheduler_ext.scoring.typical_pods import TypicalPods
from scheduler_ext.snapshot.drains import Drain, beside_drain, may_pass, without_drain
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    Snapshot,
    drain,
    nodes_listed,
    pod_updated,
    release,
    undrain,
)
from scheduler_ext.verbs.drained import DrainedFits, beside_drained
from scheduler_ext.verbs.fit_cache import FitCache, FitKey, fit_key
from tests.bench.experiment import WHOLE_MILLI, NodeRow, PodRow
from tests.bench.lives import END_S, WARM_S, Life
from tests.bench.served import CARD_MIB, CONTAINER, request_of
from timekeeper.accounts.held.drains import DrainTurns
from timekeeper.accounts.held.gangs import GangMember, WaitingGang
from timekeeper.core.gangs import Gang
from timekeeper.core.values import Card, Placement

POLICIES = ("without gangs", "FIFO", "plain backfill", "Bursar")
GANG_SIZES = (2, 4, 8, 16, 32, 64)
LOOK_S = 5
AFTER_S, DRAIN_S = 120, 900  # the timekeeper's defaults
SIZES = ("single", *(f"gang of {size}" for size in GANG_SIZES))


class Job(NamedTuple):
    """A single pod, or a gang of ``size`` pods that ask the same and end together. ``declared_s``: how long
    each declares to run, 0: it does not."""

    at_s: int
    life: Life
    size: int
    declared_s: int

    @property
    def kind(self) -> str:
        """One of `SIZES`."""
        return "single" if self.size == 1 else f"gang of {self.size}"


@dataclass(frozen=True, slots=True)
class GangWeek:
    """``used``: per cent of the GPUs that pods have, the mean over the week. ``waits_s``: by size, of the
    jobs that arrived in it; who waits at the end counts until then. ``drained``: per cent of the GPUs that
    drains keep empty. ``drains``: how many ended, by how."""

    used: float
    drained: float
    waits_s: dict[str, list[int]]
    waiting: dict[str, int]
    drains: dict[str, int]


def jobs_of(
    nodes: Sequence[NodeRow],
    lives: Sequence[Life],
    percent: int,
    gang_percent: int,
    declare_percent: int,
    seed: int,
) -> list[Job]:
    """Jobs that ask for this part of the GPUs in all, of which gangs ask for ``gang_percent`` per cent, those
    of each size for as much. Members ask for one whole GPU. Of all jobs so many per cent declare their time,
    one to three times as long as they run."""
    drawing = random.Random(f"gangs {percent} {gang_percent} {declare_percent} {seed}")
    capacity = sum(node.gpus for node in nodes) * WHOLE_MILLI * percent / 100
    ones = [life for life in lives if life.pod.whole and life.pod.num_gpu == 1]
    most = {row: _most(nodes, row) for row in {life.pod for life in ones}}
    found = list(_arrive(drawing, lives, 1, capacity * (100 - gang_percent) / 100, declare_percent))
    for size in GANG_SIZES:
        part = capacity * gang_percent / 100 / len(GANG_SIZES)
        possible = [life for life in ones if most[life.pod] >= size]
        found += _arrive(drawing, possible, size, part, declare_percent) if possible else []
    return sorted(found, key=lambda job: job.at_s)


def _most(nodes: Sequence[NodeRow], row: PodRow) -> int:
    """How many such pods the empty cluster takes, at most the largest gang."""
    pods = [replace(pod_of(row), uid=str(at)) for at in range(GANG_SIZES[-1])]
    empty = nodes_listed(EMPTY, (node_of(f"n{at}", node) for at, node in enumerate(nodes)))
    return len(plan(pods, PlanInput(empty, UNHEARD, lambda _: BINPACK)).members)


def _arrive(
    drawing: random.Random, lives: Sequence[Life], size: int, milli: float, declare_percent: int
) -> Iterator[Job]:
    between_s = fmean(life.pod.asked_milli * life.lasts_s for life in lives) * size / milli
    at = drawing.expovariate(1 / between_s)
    while at < END_S:
        life = drawing.choice(lives)
        declared_s = (
            int(life.lasts_s * drawing.uniform(1, 3)) if drawing.randrange(100) < declare_percent else 0
        )
        yield Job(int(at), life, size, declared_s)
        at += drawing.expovariate(1 / between_s)


def node_of(name: str, row: NodeRow) -> Node:
    """What the extender would have read of this node."""
    allocatable = {"cpu": f"{row.cpu_milli}m", "memory": f"{row.memory_mib}Mi", "pods": "1000"}
    bare = read_node({"metadata": {"name": name}, "status": {"allocatable": allocatable}})
    cards = tuple(Card(f"GPU-{name}-{at}", at, row.model, CARD_MIB) for at in range(row.gpus))
    return replace(bare, cards=cards, family=OURS)


def pod_of(row: PodRow) -> Pod:
    """What the extender would have read of a pod of this row."""
    limits = {"bursar.dev/gpu-count": "1", "cpu": f"{row.cpu_milli}m", "memory": f"{row.memory_mib}Mi"}
    container = {"name": CONTAINER, "resources": {"limits": limits, "requests": limits}}
    bare = read_pod({"metadata": {"name": "p", "namespace": "trace"}, "spec": {"containers": [container]}})
    if bare is None:
        raise AssertionError("the extender reads no GPU request")
    return replace(bare, request=request_of(row), amounts=())


@dataclass(slots=True, eq=False)
class _Job:
    number: int
    job: Job
    pods: tuple[Pod, ...]
    waits: WaitingGang | None  # as the timekeeper knows it
    began_s: int | None = None


class Simulation:
    """One week under one policy."""

    def __init__(self, nodes: Sequence[NodeRow], mix: TypicalPods, policy: str) -> None:
        self.policy, self._model = policy, FragmentationModel(mix)
        self._names = [f"n{at:06}" for at in range(len(nodes))]
        self._at = {name: at for at, name in enumerate(self._names)}
        self.snapshot: Snapshot = nodes_listed(EMPTY, map(node_of, self._names, nodes))
        self._cpu_milli = [row.cpu_milli for row in nodes]
        self._memory_mib = [row.memory_mib for row in nodes]
        self._capacity = sum(row.gpus for row in nodes) * WHOLE_MILLI
        self._cache, self._known = FitCache(), dict[PodRow, tuple[Pod, FitKey]]()
        self._looks = DrainedFits()
        self._turns = DrainTurns(AFTER_S * 1000, DRAIN_S * 1000 if policy == "Bursar" else 0)
        self._short: set[str] = set()
        self.jobs: list[_Job] = []
        self._singles, self._gangs = dict[int, _Job](), dict[int, _Job]()  # those that wait, by number
        self._ends: list[tuple[int, int]] = []
        self._look_s: int | None = None
        self._used_milli, self.drains = 0, dict[str, int]()
        self._waiting: deque[_Job] = deque()  # FIFO
        self._areas = [0, 0]  # used and drained, in thousandths of a GPU and seconds
        self._now_s = 0

    # Time

    def run(self, coming: Sequence[Job]) -> GangWeek:
        """The week, after a first day that is not measured."""
        arrivals = deque(coming)
        while True:
            times = [
                END_S,
                *([arrivals[0].at_s] if arrivals else []),
                *([self._ends[0][0]] if self._ends else []),
            ]
            times += [self._look_s] if self._look_s is not None else []
            at_s = min(times)
            self._pass_until(at_s)
            if at_s >= END_S:
                return self._told()
            freed = self._end_until(at_s)
            while arrivals and arrivals[0].at_s <= at_s:
                self._arrive(arrivals.popleft())
            if freed:
                self._retry(freed)
            if self._look_s is not None and self._look_s <= at_s:
                self._look()

    def _pass_until(self, at_s: int) -> None:
        measured_s = max(at_s, WARM_S) - max(self._now_s, WARM_S)
        if measured_s:
            self._areas[0] += self._used_milli * measured_s
            self._areas[1] += self._drained_milli() * measured_s
        self._now_s = at_s

    def _drained_milli(self) -> int:
        if self.snapshot.drain is None:
            return 0
        found = 0
        for name, kept in self.snapshot.drain.cards:
            node, used = self.snapshot.node(name), dict[str, int]()
            for each in node.allocations.values():
                for uuid, use in each.uses if each.state == "bound" else ():
                    used[uuid] = used.get(uuid, 0) + use.share_milli
            found += sum(WHOLE_MILLI - used.get(uuid, 0) for uuid in kept)
        return found

    def _end_until(self, at_s: int) -> list[str]:
        freed = []
        while self._ends and self._ends[0][0] <= at_s:
            for pod in self.jobs[heapq.heappop(self._ends)[1]].pods:
                name = self.snapshot.allocated_on.get(pod.uid) or ""
                self.snapshot = release(self.snapshot, pod.uid)
                self.snapshot = replace(self.snapshot, pods=self.snapshot.pods.without(pod.uid))
                self._count(name, pod, -1)
                freed.append(name)
        if freed:
            self._look_soon()
        return freed

    def _look_soon(self) -> None:
        at_s = self._now_s // LOOK_S * LOOK_S + LOOK_S
        if self.policy != "FIFO" and (self._look_s is None or at_s < self._look_s):
            self._look_s = at_s

    # Arrivals

    def _arrive(self, job: Job) -> None:
        sizes = [1] * job.size if self.policy == "without gangs" else [job.size]
        for size in sizes:
            number = len(self.jobs)
            one = job._replace(size=size)
            pods = self._pods(number, one)
            self.jobs.append(_Job(number, one, pods, _waiting_gang(pods, one) if size > 1 else None))
            self._start_or_wait(self.jobs[-1])

    def _pods(self, number: int, job: Job) -> tuple[Pod, ...]:
        bare, _ = self._asked(job.life.pod)
        gang = Gang("bursar", str(number), job.size, job.size) if job.size > 1 else None
        return tuple(
            replace(
                bare,
                uid=f"{number}/{at}",
                name=f"{number}-{at}",
                gang=gang,
                declared_ms=job.declared_s * 1000,
            )
            for at in range(job.size)
        )

    def _start_or_wait(self, it: _Job) -> None:
        if self.policy == "FIFO":
            self._waiting.append(it)
            return self._fifo()
        if it.job.size > 1:
            self._gangs[it.number] = it
            self._look_soon()
        elif not self._try_single(it):
            self._singles[it.number] = it
        return None

    def _fifo(self) -> None:
        while self._waiting and self._try(self._waiting[0]):
            self._waiting.popleft()

    def _try(self, it: _Job) -> bool:
        return self._try_single(it) if it.job.size == 1 else self._try_gang(it)

    def _retry(self, freed: Sequence[str]) -> None:
        """The single pods in the order of their arrival: only these nodes have more room than when they were
        tried last, and of those that ask the same and may pass alike, all fit or none."""
        if self.policy == "FIFO":
            return self._fifo()
        refused = set[tuple[PodRow, bool]]()
        for it in list(self._singles.values()):
            row = it.job.life.pod
            passes = self._may_pass(it.pods[0])
            if (row, passes) in refused or not any(self._has_room(row, name, passes) for name in freed):
                continue
            if self._try_single(it):
                del self._singles[it.number]
            else:
                refused.add((row, passes))
        return None

    def _may_pass(self, pod: Pod) -> bool:
        drain = self.snapshot.drain
        return drain is not None and may_pass(pod, drain.starts_ms, self._now_s * 1000)

    def _has_room(self, row: PodRow, name: str, passes: bool) -> bool:
        at, node = self._at[name], self.snapshot.node(name)
        if self._cpu_milli[at] < row.cpu_milli or self._memory_mib[at] < row.memory_mib:
            return False
        cards = (without_drain(node) if passes else node).free_by_card
        return sum(free is not None and free.share_milli >= row.gpu_milli for free in cards) >= row.num_gpu

    # Places

    def _asked(self, row: PodRow) -> tuple[Pod, FitKey]:
        if row not in self._known:
            pod = pod_of(row)
            if pod.request is None:
                raise AssertionError("a pod without a request")
            self._known[row] = pod, fit_key(pod.request, self._policy_of(row), pod.amounts)
        return self._known[row]

    def _policy_of(self, row: PodRow) -> Policy:
        return fragmentation(self._model, row.cpu_milli)

    def _try_single(self, it: _Job) -> bool:
        row, pod = it.job.life.pod, it.pods[0]
        _, key = self._asked(row)
        there = zip(self._names, self._cpu_milli, self._memory_mib, strict=True)
        offered = [name for name, cpu, memory in there if cpu >= row.cpu_milli and memory >= row.memory_mib]
        result = self._cache.partition(key, self.snapshot.nodes, offered)
        if pod.request is None:
            raise AssertionError("a pod without a request")
        if not result.fits and self.snapshot.drain is not None:
            result = beside_drained(result, pod, key, self.snapshot, self._now_s * 1000, self._looks)
        if not result.fits:
            return False
        scores, by_name = self._cache.scored(key, self.snapshot.nodes, result.fits)
        name = result.fits[int(ranked(key.policy, pod.uid, scores, by_name).argmax())]
        node = beside_drain(pod, self.snapshot.node(name), self._now_s * 1000)
        placement = fit(pod.request, node, key.policy)
        if isinstance(placement, Refusal):
            raise AssertionError("the pod does not fit where prioritize sent it")
        self._start(it, [(pod, name, placement)])
        return True

    def _try_gang(self, it: _Job, *, may_drain: bool = False) -> bool:
        made = plan(it.pods, self._given())
        if made.suffices(len(it.pods)):
            self._start(it, [(each.pod, each.node, each.placement) for each in made.members])
            return True
        self._short.add(_key(it))
        if may_drain and self.snapshot.drain is None:
            self._drain(it)
        return False

    def _given(self) -> PlanInput:
        policy = self._policy_of(PodRow(0, 0, 1, WHOLE_MILLI, ()))
        return PlanInput(self.snapshot, UNHEARD, lambda _: policy)

    def _start(self, it: _Job, places: Sequence[tuple[Pod, str, Placement]]) -> None:
        for pod, name, placement in places:
            there = replace(pod, node=name, placement=placement, started_ms=self._now_s * 1000, gang=None)
            self.snapshot = pod_updated(self.snapshot, there)
            self._count(name, pod, 1)
        it.began_s = self._now_s
        heapq.heappush(self._ends, (self._now_s + it.job.life.lasts_s, it.number))

    def _count(self, name: str, pod: Pod, sign: int) -> None:
        row = self.jobs[int(pod.uid.partition("/")[0])].job.life.pod
        at = self._at[name]
        self._cpu_milli[at] -= sign * row.cpu_milli
        self._memory_mib[at] -= sign * row.memory_mib
        self._used_milli += sign * row.asked_milli
        if self._cpu_milli[at] < 0 or self._memory_mib[at] < 0:
            raise AssertionError(f"node {name} is overcommitted")

    # Gangs

    def _look(self) -> None:
        """What the timekeeper does every five seconds."""
        self._look_s = None
        now_ms, before = self._now_s * 1000, self._turns.key
        self._turns.asked(now_ms)  # it is asked every five seconds, also when nothing has changed
        waiting = {it.waits.key: it.waits for it in self._gangs.values() if it.waits is not None}
        self._note(self._turns.follow(waiting, self._short, now_ms))
        if before and self._turns.key != before:
            self._undrain()
        order = sorted(self._gangs.values(), key=lambda it: (_key(it) != self._turns.key, it.number))
        free = self._untouched()
        for it in order:
            is_first = _key(it) == self._turns.key
            most = self._untouched(by_drain=True) if is_first else free
            if most < it.job.size and not (is_first and self.snapshot.drain is None):
                self._short.add(_key(it))
            elif self._try_gang(it, may_drain=is_first):
                del self._gangs[it.number]
                self._short.discard(_key(it))
                free = self._untouched()
                if is_first:
                    self._note(self._turns.end("fit", now_ms))
                    self._undrain()
            elif is_first and self.snapshot.drain is None:
                self._note(self._turns.end("none", now_ms))
        if self._gangs and self._turns.first_ms:
            self._look_again()

    def _look_again(self) -> None:
        """Also when nothing ends: a drain may be over, or begin."""
        minute = self._now_s + 60
        if self._turns.key:
            minute = min(minute, max(self._turns.until_ms // 1000, self._now_s + LOOK_S))
        at_s = minute // LOOK_S * LOOK_S
        self._look_s = at_s if self._look_s is None else min(self._look_s, at_s)

    def _untouched(self, *, by_drain: bool = False) -> int:
        """No gang that needs more cards than these fits. ``by_drain``: the gang that has the drain."""
        nodes = self.snapshot.nodes.values()
        there = map(without_drain, nodes) if by_drain and self.snapshot.drain is not None else nodes
        return sum(free is not None and free.untouched for node in there for free in node.free_by_card)

    def _drain(self, it: _Job) -> None:
        found = choose(it.pods, self._given(), self._turns.until_ms, self._now_s * 1000)
        gang = it.pods[0].gang
        if found is None or gang is None:
            return
        until_ms = self._turns.until_ms
        wanted = Drain("trace", gang.key, gang.name, found.starts_ms, until_ms, until_ms, found.cards)
        self.snapshot = drain(self.snapshot, wanted)

    def _undrain(self) -> None:
        if self.snapshot.drain is not None:
            freed = [name for name, _ in self.snapshot.drain.cards]
            self.snapshot = undrain(self.snapshot)
            self._retry(freed)

    def _note(self, how: str | None) -> None:
        if how is not None and self._now_s >= WARM_S:
            self.drains[how] = self.drains.get(how, 0) + 1

    def _told(self) -> GangWeek:
        waits: dict[str, list[int]] = {size: [] for size in SIZES}
        waiting = dict.fromkeys(SIZES, 0)
        for it in self.jobs:
            if it.began_s is None:
                waiting[it.job.kind] += 1
            if it.job.at_s >= WARM_S:
                waits[it.job.kind].append((END_S if it.began_s is None else it.began_s) - it.job.at_s)
        most = self._capacity * (END_S - WARM_S)
        used, drained = (100 * area / most for area in self._areas)
        return GangWeek(used, drained, waits, waiting, self.drains)


def _key(it: _Job) -> str:
    return f"trace/bursar/{it.number}"


def _waiting_gang(pods: Sequence[Pod], job: Job) -> WaitingGang | None:
    first = pods[0]
    member = GangMember(first.uid, first.name, job.at_s * 1000, False, True)
    return WaitingGang("trace", first.gang, (member,)) if first.gang is not None else None
