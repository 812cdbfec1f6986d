"""Gangs beside single pods: waiting times by size, and how much of the GPUs pods have, in a week of arrivals.

Nodes are drawn from the published ones, pods with their lifetimes from the published list; gangs of 2 to 64
pods with a whole GPU each ask for three tenths of the load, and half of all jobs declare their time. The same
jobs arrive under each policy: ``without gangs`` the members start one by one; ``plain backfill`` whatever
fits starts, and no card is drained; ``Bursar`` is what is served.

Everything that decides is Bursar's: the fit and the rank of filter and prioritize, and all that starts gangs
and drains cards. kube-scheduler's part is CPU and memory of single pods, and that it binds a member at once.

    python -m tests.bench.gang_week --json FILE        # what stands in the file is not done again
"""

import argparse
import csv
import heapq
import json
import lzma
import random
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.drain_turns import DrainTurns
from scheduler_ext.gangs.drains import GangDrains
from scheduler_ext.gangs.plan import plan
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.gangs.starts import GangStarts, StartWiring
from scheduler_ext.model.node import Node, read_node
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BINPACK, Policy
from scheduler_ext.scoring.rank import ranked
from scheduler_ext.scoring.typical_pods import TypicalPod, typical_pods_of
from scheduler_ext.snapshot.drains import beside_drain, may_pass, without_drain
from scheduler_ext.snapshot.gang_table import Gangs
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.snapshot.snapshot import EMPTY, Snapshot, nodes_listed
from scheduler_ext.verbs.drained import DrainedFits, beside_drained
from scheduler_ext.verbs.fit_cache import FitCache, FitKey, fit_key
from scheduler_ext.waiting.order import ANYWHERE, queue_key
from tests.bench.experiment import WHOLE_MILLI, NodeRow, PodRow, read_nodes, read_pods
from tests.bench.served import CONTAINER, facts_of, request_of
from timekeeper.core.gangs import Gang
from timekeeper.core.names import GANG_GATE
from timekeeper.core.values import Placement

Json = dict[str, Any]
Lives = Sequence[tuple[PodRow, int]]  # what pods ask, and how many seconds they run

DATA = Path(__file__).parent / "openb"
DAY_S = 86_400
WARM_S, END_S, LONGEST_S = DAY_S, 8 * DAY_S, 2 * DAY_S  # the first day is not measured; longer lives are cut
POLICIES = ("without gangs", "plain backfill", "Bursar")
GANG_SIZES = (2, 4, 8, 16, 32, 64)
GANGS, DECLARE = 30, 50  # per cent of the load, and of the jobs
LOOK_S = 5
AFTER_MS, DRAIN_MS = 120_000, 900_000  # the extender's defaults
MAX_AHEAD = 64
WANTED = 0.97  # at 80 % load, of what pods have without gangs


class Job(NamedTuple):
    """A single pod, or a gang of ``size`` pods that ask the same and end together. ``declared_s``: how long
    each declares to run, 0: it does not."""

    at_s: int
    row: PodRow
    lasts_s: int
    size: int
    declared_s: int

    @property
    def kind(self) -> str:
        """For people."""
        return "single" if self.size == 1 else f"gang of {self.size}"


def published(nodes: Sequence[NodeRow]) -> list[tuple[PodRow, int]]:
    """The published pods with GPUs that ran and that a node takes, and how long each ran."""
    path = DATA / "openb_pod_list_default.csv.xz"
    with lzma.open(path, "rt", newline="") as file:
        times = [(row["creation_time"], row["deletion_time"]) for row in csv.DictReader(file)]
    return [
        (pod, min(max(1, int(end) - int(begin)), LONGEST_S))
        for pod, (begin, end) in zip(read_pods(path), times, strict=True)
        if begin and end and pod.num_gpu and any(could(pod, node) for node in nodes)
    ]


def could(pod: PodRow, node: NodeRow) -> bool:
    """Whether the node takes the pod when it is empty."""
    is_large = node.cpu_milli >= pod.cpu_milli and node.memory_mib >= pod.memory_mib
    return is_large and node.gpus >= pod.num_gpu


def jobs_of(nodes: Sequence[NodeRow], lives: Lives, percent: int, seed: int) -> list[Job]:
    """Jobs that ask for this part of the GPUs in all; gangs of each size ask for as much. Those that declare
    say one to three times as long as they run."""
    drawing = random.Random(f"gangs {percent} {GANGS} {DECLARE} {seed}")
    capacity = sum(node.gpus for node in nodes) * WHOLE_MILLI * percent / 100
    ones = [(row, lasts_s) for row, lasts_s in lives if row.whole and row.num_gpu == 1]
    most = {row: _most(nodes, row) for row in {row for row, _ in ones}}
    jobs = list(_arrive(drawing, lives, 1, capacity * (100 - GANGS) / 100))
    for size in GANG_SIZES:
        possible = [(row, lasts_s) for row, lasts_s in ones if most[row] >= size]
        part = capacity * GANGS / 100 / len(GANG_SIZES)
        jobs += _arrive(drawing, possible, size, part) if possible else []
    return sorted(jobs, key=lambda job: job.at_s)


def _most(nodes: Sequence[NodeRow], row: PodRow) -> int:
    """How many such pods the empty cluster takes, at most the largest gang."""
    pods = [replace(pod_of(row), uid=str(at)) for at in range(GANG_SIZES[-1])]
    empty = nodes_listed(EMPTY, (node_of(f"n{at}", node) for at, node in enumerate(nodes)))
    return len(plan(pods, PlanInput(empty, UNHEARD, lambda _: BINPACK)).members)


def _arrive(drawing: random.Random, lives: Lives, size: int, milli: float) -> Iterator[Job]:
    between_s = fmean(row.asked_milli * lasts_s for row, lasts_s in lives) * size / milli
    at = drawing.expovariate(1 / between_s)
    while at < END_S:
        row, lasts_s = drawing.choice(lives)
        declared_s = int(lasts_s * drawing.uniform(1, 3)) if drawing.randrange(100) < DECLARE else 0
        yield Job(int(at), row, lasts_s, size, declared_s)
        at += drawing.expovariate(1 / between_s)


def node_of(name: str, row: NodeRow) -> Node:
    """What the extender would have read of this node."""
    allocatable = {"cpu": f"{row.cpu_milli}m", "memory": f"{row.memory_mib}Mi", "pods": "1000"}
    bare = read_node({"metadata": {"name": name}, "status": {"allocatable": allocatable}})
    return replace(bare, cards=facts_of(name, row).cards, family=facts_of(name, row).family)


def pod_of(row: PodRow) -> Pod:
    """What the extender would have read of a pod of this row."""
    limits = {"bursar.dev/gpu-count": "1", "cpu": f"{row.cpu_milli}m", "memory": f"{row.memory_mib}Mi"}
    container = {"name": CONTAINER, "resources": {"limits": limits, "requests": limits}}
    bare = read_pod({"metadata": {"name": "p", "namespace": "trace"}, "spec": {"containers": [container]}})
    if bare is None:
        raise AssertionError("the extender reads no GPU request")
    return replace(bare, request=request_of(row), amounts=())


@dataclass(slots=True, eq=False)
class _Waits:
    number: int
    job: Job
    pods: tuple[Pod, ...]
    began_s: int | None = None


@dataclass(slots=True)
class _Calls:
    """The API server, as the starts of gangs see it: each call is done at once."""

    cache: ClusterCache
    opened: list[str] = field(default_factory=list)

    def open_gates(self, pods: Iterable[Pod]) -> list[str]:
        """kube-scheduler may try them."""
        done = []
        for pod in pods:
            self.cache.pod_updated(replace(pod, gates=()))
            self.opened.append(pod.uid)
            done.append("done")
        return done

    def evict(self, pods: Sequence[Pod], why: str) -> list[str]:
        """No start comes to nothing here."""
        raise AssertionError(f"{len(pods)} pods are evicted: {why}")

    def mark(self, pod: Pod) -> str:
        """A further mark."""
        self.cache.pod_updated(replace(pod, is_marked=True))
        return "done"


class Week:
    """The cluster, under one policy."""

    def __init__(self, nodes: Sequence[NodeRow], lives: Lives, policy: str) -> None:
        asked = (row for row, _ in lives)
        shapes = (TypicalPod(row.cpu_milli, row.num_gpu, row.gpu_milli, models=row.models) for row in asked)
        self._model = FragmentationModel(typical_pods_of(Counter(shapes)))
        self._are_gangs, self._now_s = policy != POLICIES[0], 0
        self._names = [f"n{at:06}" for at in range(len(nodes))]
        self._at = {name: at for at, name in enumerate(self._names)}
        self._left = [[row.cpu_milli, row.memory_mib] for row in nodes]
        self._capacity = sum(row.gpus for row in nodes) * WHOLE_MILLI
        self._fits, self._known, self._looks = FitCache(), dict[PodRow, tuple[Pod, FitKey]](), DrainedFits()
        self._cache = ClusterCache(lambda: self._now_ms, lambda _: None)
        self._cache.nodes_listed(map(node_of, self._names, nodes))
        self._cache.pods_listed([])
        self._calls = _Calls(self._cache)
        self._gang_policy = self._policy_of(PodRow(0, 0, 1, WHOLE_MILLI, ()))
        turns = DrainTurns(AFTER_MS, DRAIN_MS if policy == POLICIES[-1] else 0)
        self._drains = GangDrains(self._cache, self._given, turns, lambda *_, **__: None)
        calls: Any = self._calls
        self._starts = GangStarts(
            StartWiring(
                cache=self._cache,
                gangs=Gangs(),
                given=self._given_beside,
                policies=lambda _: self._gang_policy,
                order=lambda pod: queue_key(pod, ANYWHERE, UNHEARD),
                calls=calls,
                drains=self._drains,
                leads=lambda: True,
                tell=lambda *_: None,
                started=lambda *_: None,
                steady_ms=lambda: self._now_ms,
                now_ms=lambda: self._now_ms,
                log=lambda *_, **__: None,
            )
        )
        self.jobs: list[_Waits] = []
        self._singles, self._gangs = dict[int, _Waits](), dict[int, _Waits]()  # those that wait
        self._ends: list[tuple[int, int]] = []
        self._look_s: int | None = None
        self._used_milli, self._areas = 0, [0, 0]  # used and drained, in thousandths of a GPU and seconds

    @property
    def _now_ms(self) -> int:
        return self._now_s * 1000 + AFTER_MS

    @property
    def _snapshot(self) -> Snapshot:
        return self._cache.snapshot

    # time

    def run(self, coming: Sequence[Job]) -> Json:
        """The figures of the week."""
        arrivals = deque(coming)
        while True:
            times = [END_S, *(job.at_s for job in [*arrivals][:1]), *(at_s for at_s, _ in self._ends[:1])]
            at_s = min(times if self._look_s is None else [*times, self._look_s])
            self._pass_until(at_s)
            if at_s >= END_S:
                return self._told()
            freed = self._end_until(at_s)
            while arrivals and arrivals[0].at_s <= at_s:
                self._come(arrivals.popleft())
            self._retry(freed)
            if self._look_s is not None and self._look_s <= at_s:
                self._look()

    def _pass_until(self, at_s: int) -> None:
        measured_s = max(at_s, WARM_S) - max(self._now_s, WARM_S)
        self._areas[0] += self._used_milli * measured_s
        self._areas[1] += self._drained_milli() * measured_s if measured_s else 0
        self._now_s = at_s

    def _drained_milli(self) -> int:
        drain, empty = self._snapshot.drain, 0
        for name, kept in drain.cards if drain is not None else ():
            free = without_drain(self._snapshot.node(name)).free_by_card
            cards = zip(self._snapshot.node(name).cards, free, strict=True)
            empty += sum(left.share_milli for card, left in cards if left is not None and card.uuid in kept)
        return empty

    def _end_until(self, at_s: int) -> list[str]:
        freed = []
        while self._ends and self._ends[0][0] <= at_s:
            for pod in self.jobs[heapq.heappop(self._ends)[1]].pods:
                there = self._snapshot.pods.get(pod.uid)
                if there is None:
                    raise AssertionError("a pod ended that does not run")
                ended = replace(there, terminal=True, hold=replace(there.hold, over=True))
                self._cache.pod_updated(ended)
                self._cache.pod_deleted(ended)
                self._count(there.node, pod, -1)
                freed.append(there.node)
        if freed:
            self._look_soon(self._now_s)
        return freed

    def _look_soon(self, after_s: int) -> None:
        at_s = after_s // LOOK_S * LOOK_S + LOOK_S
        self._look_s = at_s if self._look_s is None else min(self._look_s, at_s)

    # arrivals

    def _come(self, job: Job) -> None:
        for size in [job.size] if self._are_gangs else [1] * job.size:
            number, sized = len(self.jobs), job._replace(size=size)
            waits = _Waits(number, sized, tuple(self._pods(number, sized)))
            self.jobs.append(waits)
            if size > 1:
                self._gangs[number] = waits
                for pod in waits.pods:
                    self._cache.pod_updated(pod)
                self._look_soon(self._now_s)
            elif not self._try_single(waits):
                self._singles[number] = waits

    def _pods(self, number: int, job: Job) -> Iterator[Pod]:
        bare, _ = self._asked(job.row)
        gang = Gang(f"bursar/{number}", job.size, job.size) if job.size > 1 else None
        gates = (GANG_GATE,) if gang is not None else ()
        bare = replace(bare, gang=gang, gates=gates, declared_ms=job.declared_s * 1000, asked_ms=self._now_ms)
        for at in range(job.size):
            yield replace(bare, uid=f"{number:06}/{at}", name=f"{number}-{at}")

    # single pods

    def _retry(self, freed: Sequence[str]) -> None:
        """Those that wait, in the order of their arrival: only these nodes have more room than when they were
        tried last, and of those that ask the same and may pass alike, all fit or none."""
        refused = set[tuple[PodRow, bool]]()
        for waits in list(self._singles.values()) if freed else ():
            row, drain = waits.job.row, self._snapshot.drain
            passes = drain is not None and may_pass(waits.pods[0], drain.starts_ms, self._now_ms)
            if (row, passes) in refused or not any(self._has_room(row, name, passes) for name in freed):
                continue
            if self._try_single(waits):
                del self._singles[waits.number]
            else:
                refused.add((row, passes))

    def _has_room(self, row: PodRow, name: str, passes: bool) -> bool:
        node, (cpu_milli, memory_mib) = self._snapshot.node(name), self._left[self._at[name]]
        cards = (without_drain(node) if passes else node).free_by_card
        free = sum(left is not None and left.share_milli >= row.gpu_milli for left in cards)
        return cpu_milli >= row.cpu_milli and memory_mib >= row.memory_mib and free >= row.num_gpu

    def _asked(self, row: PodRow) -> tuple[Pod, FitKey]:
        if row not in self._known:
            pod = pod_of(row)
            if pod.request is None:
                raise AssertionError("a pod without a request")
            self._known[row] = pod, fit_key(pod.request, self._policy_of(row), pod.amounts)
        return self._known[row]

    def _policy_of(self, row: PodRow) -> Policy:
        return fragmentation(self._model, row.cpu_milli)

    def _try_single(self, waits: _Waits) -> bool:
        row, pod, snapshot = waits.job.row, waits.pods[0], self._snapshot
        _, key = self._asked(row)
        there = zip(self._names, self._left, strict=True)
        offered = [name for name, (cpu, memory) in there if cpu >= row.cpu_milli and memory >= row.memory_mib]
        result = self._fits.partition(key, snapshot.nodes, offered)
        if not result.fits and snapshot.drain is not None:
            result = beside_drained(result, pod, key, snapshot, self._now_ms, self._looks)
        if not result.fits:
            return False
        scores, by_name = self._fits.scored(key, snapshot.nodes, result.fits)
        name = result.fits[int(ranked(key.policy, pod.uid, scores, by_name).argmax())]
        placement = (
            None
            if pod.request is None
            else fit(pod.request, beside_drain(pod, snapshot.node(name), self._now_ms), key.policy)
        )
        if placement is None or isinstance(placement, Refusal):
            raise AssertionError("the pod does not fit where prioritize sent it")
        self._bind(pod, name, placement)
        self._begin(waits)
        return True

    def _bind(self, pod: Pod, name: str, placement: Placement, mark: str = "") -> None:
        bound = replace(pod, node=name, placement=placement, started_ms=self._now_ms, gates=())
        self._cache.pod_updated(replace(bound, is_marked=mark != ""))
        self._count(name, pod, 1)

    def _begin(self, waits: _Waits) -> None:
        waits.began_s = self._now_s
        heapq.heappush(self._ends, (self._now_s + waits.job.lasts_s, waits.number))

    def _count(self, name: str, pod: Pod, sign: int) -> None:
        row, left = self.jobs[int(pod.uid.partition("/")[0])].job.row, self._left[self._at[name]]
        left[0] -= sign * row.cpu_milli
        left[1] -= sign * row.memory_mib
        self._used_milli += sign * row.asked_milli
        if min(left) < 0:
            raise AssertionError(f"node {name} is overcommitted")

    # gangs

    def _look(self) -> None:
        """Steps, until each gang has been planned and nothing more starts."""
        self._look_s, drain = None, self._snapshot.drain
        self._cache.expire()
        steps = len(self._gangs) + 1
        while steps > 0:
            steps -= 1
            self._starts.step()
            if self._bind_members():
                steps = len(self._gangs) + 1
            if drain is not None and self._snapshot.drain is not drain:  # single pods are tried at once
                self._retry([name for name, _ in drain.cards])
            drain = self._snapshot.drain
        turns = self._drains.turns
        if self._gangs and turns.first_ms:  # also when nothing ends: a drain may be over, or begin
            until_s = (turns.until_ms - AFTER_MS) // 1000 - LOOK_S if turns.key else END_S
            self._look_soon(min(self._now_s + 60, max(until_s, self._now_s)))

    def _bind_members(self) -> bool:
        opened, self._calls.opened = self._calls.opened, []
        for uid in opened:
            pod, name = self._snapshot.pods.get(uid), self._snapshot.allocated_on.get(uid)
            if pod is None or name is None or pod.request is None:
                raise AssertionError(f"no cards are kept for {uid}")
            placement = fit(pod.request, as_found_by(uid, self._snapshot.node(name)), self._gang_policy)
            if isinstance(placement, Refusal):
                raise AssertionError(f"{uid} does not fit where cards are kept for it")
            self._bind(pod, name, placement, self._starts.mark_of(pod))
            self._starts.bound(pod)
        for number in {int(uid.partition("/")[0]) for uid in opened}:
            self._begin(self._gangs.pop(number))
        return bool(opened)

    def _given(self, snapshot: Snapshot) -> PlanInput:
        return PlanInput(snapshot, UNHEARD, lambda _: self._gang_policy)

    def _given_beside(self, snapshot: Snapshot, pod: Pod) -> PlanInput:
        number = int(pod.uid.partition("/")[0])
        first = (waits.pods[0] for waits in self._singles.values() if waits.number < number)
        ahead = tuple(each for _, each in zip(range(MAX_AHEAD), first, strict=False))
        is_kept = snapshot.drain is not None and snapshot.drain.is_of(pod)
        nodes = snapshot.nodes.values()
        there = map(without_drain, nodes) if is_kept else nodes
        free = sum(left is not None and left.untouched for node in there for left in node.free_by_card)
        is_hopeless = pod.gang is not None and free < pod.gang.size  # so the plan need not look at any node
        return replace(self._given(snapshot), ahead=() if is_hopeless else ahead, is_late=lambda: is_hopeless)

    def _told(self) -> Json:
        waits: dict[str, list[int]] = {}
        for each in self.jobs:
            if each.job.at_s >= WARM_S:
                began_s = END_S if each.began_s is None else each.began_s
                waits.setdefault(each.job.kind, []).append(began_s - each.job.at_s)
        used, drained = (100 * area / (self._capacity * (END_S - WARM_S)) for area in self._areas)
        ordered = {kind: sorted(times) for kind, times in waits.items()}
        return {
            "used": used,
            "drained": drained,
            "waits": {
                kind: [round(times[len(times) * part // 100] / 60, 1) for part in (50, 95)]
                for kind, times in ordered.items()
            },
            "waiting": Counter(each.job.kind for each in self.jobs if each.began_s is None),
            "drains": self._drains.turns.ended,
        }


def simulated(load: int, seed: int, count: int, policy: str) -> Json:
    """The figures of one week."""
    listed = [node for node in read_nodes(DATA / "openb_node_list_gpu_node.csv.xz") if node.gpus]
    nodes = random.Random(f"nodes {seed}").sample(listed, count)
    lives = published(nodes)
    return Week(nodes, lives, policy).run(jobs_of(nodes, lives, load, seed))


def main() -> int:
    """All weeks that are not done, within the time; 1 if the target was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=30, help="of the cluster (%(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="(%(default)s)")
    parser.add_argument("--loads", nargs="+", type=int, default=[80], help="per cent of the GPUs")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=POLICIES, metavar="P")
    parser.add_argument("--minutes", type=float, default=14, help="begin no week after so long (%(default)s)")
    parser.add_argument("--json", type=Path, required=True, help="what is done, and goes on to be")
    given = parser.parse_args()
    done: dict[str, Json] = json.loads(given.json.read_text()) if given.json.exists() else {}
    began, missed = time.monotonic(), False
    for load, seed in ((load, seed) for load in given.loads for seed in given.seeds):
        for policy in given.policy:
            key = f"{load} {seed} {given.nodes} {policy}"
            if key not in done and time.monotonic() - began < 60 * given.minutes:
                done[key] = simulated(load, seed, given.nodes, policy)
                given.json.write_text(json.dumps(done, indent=1) + "\n")
            beside = done.get(f"{load} {seed} {given.nodes} {POLICIES[0]}")
            if key in done and beside:
                part = done[key]["used"] / beside["used"]
                missed = missed or (policy == POLICIES[-1] and load <= 80 and part < WANTED)
                print(f"{key}: {part:.3f} of {POLICIES[0]}; {done[key]}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
