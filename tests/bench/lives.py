"""A cluster for a week: pods arrive, wait, run and end. Whoever places them is given.

Waiting pods are tried again where room has come free, in the order of their arrival, those of high priority
first. A pod of high priority that finds no place preempts on the node where the fewest pods must go; these
wait again, and run on where they were.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple, Protocol

from tests.bench.experiment import WHOLE_MILLI, NodeRow, PodRow
from tests.bench.references import Seat, State, after, before, fits

DAY_S = 86_400
WARM_S = DAY_S  # not measured: the cluster fills
END_S = 8 * DAY_S
LONGEST_S = 2 * DAY_S  # longer lives are cut, so that a week shows a steady state
LEARN_S = 3_600
HIGH = 10  # one of so many GPU pods has high priority
SIZES = ("share", "1", "2-4", "8")


class Life(NamedTuple):
    """A pod's request, and how long it runs, in seconds."""

    pod: PodRow
    lasts_s: int


class Arrival(NamedTuple):
    """A pod that comes at this second."""

    at_s: int
    life: Life
    is_high: bool


class Placer(Protocol):
    """Places pods and lets them go."""

    def place(self, pod: PodRow, /) -> Seat | None:
        """Where it found a place."""

    def leave(self, pod: PodRow, seat: Seat, /) -> None:
        """The pod on this seat has ended."""


@dataclass(slots=True, eq=False)
class _Job:
    number: int
    arrival: Arrival
    waits_s: int = 0  # until it ran for the first time, or the end
    runs: int = 0  # how often it was started
    seat: Seat | None = None
    began_s: int = 0
    ran_s: int = 0  # in earlier runs


@dataclass(frozen=True, slots=True)
class Week:
    """``by_size``: per cent of the GPUs that pods of the size have, the mean over the week; ``allocation``:
    the sum. ``waits_s``: by size, of the pods that arrived in it. ``preempted``: pods. ``left``: pods that
    arrived, ended, run and wait."""

    allocation: float
    by_size: dict[str, float]
    waits_s: dict[str, list[int]]
    preempted: int
    left: dict[str, int]


def size_of(pod: PodRow) -> str:
    """One of ``SIZES``."""
    if not pod.whole:
        return "share"
    return "1" if pod.num_gpu == 1 else "8" if pod.num_gpu > 4 else "2-4"


def arrivals(
    nodes: Sequence[NodeRow], mixes: Sequence[Sequence[Life]], percent: int, seed: int
) -> list[Arrival]:
    """Pods of the mix of each day, as many as request this part of the GPUs in all. Independent of each
    other: the times between them are exponential."""
    drawing = random.Random(f"lives {percent} {seed}")
    capacity = sum(node.gpus for node in nodes) * WHOLE_MILLI * percent / 100
    found = []
    for day, mix in enumerate(mixes):
        between_s = fmean(life.pod.asked_milli * life.lasts_s for life in mix) / capacity
        at = day * DAY_S + drawing.expovariate(1 / between_s)
        while at < (day + 1) * DAY_S:
            life = drawing.choice(mix)
            found.append(Arrival(int(at), life, life.pod.num_gpu > 0 and drawing.randrange(HIGH) == 0))
            at += drawing.expovariate(1 / between_s)
    return found


@dataclass(slots=True)
class _Cluster:
    """The books: what is left of each node, and who is there."""

    nodes: Sequence[NodeRow]
    states: list[State] = field(init=False)
    jobs: list[list[_Job]] = field(init=False)

    def __post_init__(self) -> None:
        self.states = [
            State(node.cpu_milli, node.memory_mib, (WHOLE_MILLI,) * node.gpus, node.model)
            for node in self.nodes
        ]
        self.jobs = [[] for _ in self.nodes]

    def seat(self, job: _Job, seat: Seat) -> None:
        """Raises AssertionError where the pod does not fit there."""
        at, cards = seat
        pod, state = job.arrival.life.pod, self.states[at]
        tight = any(state.cards[card] < pod.gpu_milli for card in cards)
        if not fits(pod, state) or tight or len(set(cards)) != pod.num_gpu:
            raise AssertionError(f"{pod} does not fit on the cards {cards} of node {at}: {state}")
        self.states[at] = after(pod, state, cards)
        self.jobs[at].append(job)
        job.seat = seat

    def leave(self, job: _Job) -> int:
        """Where it was."""
        if job.seat is None:
            raise AssertionError("a pod ended that does not run")
        (at, cards), job.seat = job.seat, None
        self.states[at] = before(job.arrival.life.pod, self.states[at], cards)
        self.jobs[at].remove(job)
        return at

    def victims(self, pod: PodRow) -> list[_Job]:
        """The fewest that were found, of one node; the youngest go first, and who need not go stays."""
        best: list[_Job] = []
        for at, there in enumerate(self.jobs):
            state, gone = self.states[at], list[_Job]()
            for job in reversed(there):
                if fits(pod, state) or (best and len(gone) >= len(best)):
                    break
                if not job.arrival.is_high and job.seat is not None:
                    state = before(job.arrival.life.pod, state, job.seat[1])
                    gone.append(job)
            for job in list(gone):
                without = after(job.arrival.life.pod, state, job.seat[1]) if job.seat else state
                if fits(pod, state) and without.cpu_milli >= 0 and fits(pod, without):
                    state, gone = without, [each for each in gone if each is not job]
            if fits(pod, state) and gone and (not best or len(gone) < len(best)):
                best = gone
        return best


class _Running:
    """One week under one policy."""

    def __init__(self, nodes: Sequence[NodeRow], placer: Placer) -> None:
        self._placer, self._cluster = placer, _Cluster(nodes)
        self._capacity = sum(node.gpus for node in nodes) * WHOLE_MILLI
        self._ends: list[tuple[int, int, int]] = []  # when, the job's place, its run
        self._waiting: dict[tuple[bool, PodRow], deque[int]] = {}
        self.jobs: list[_Job] = []
        self.running: Counter[PodRow] = Counter()
        self.used_milli = dict.fromkeys(SIZES, 0)
        self.preempted = self.ended = 0

    def arrive(self, arrival: Arrival) -> None:
        """It runs, or it waits, or it preempts."""
        number = len(self.jobs)
        self.jobs.append(_Job(number, arrival))
        pod = arrival.life.pod
        if self._try(number, arrival.at_s):
            return
        victims = self._cluster.victims(pod) if arrival.is_high else []
        freed = set[int]()
        for job in victims:
            job.ran_s += arrival.at_s - job.began_s
            freed.add(self._leave(job))
        self.preempted += len(victims)
        if not victims or not self._try(number, arrival.at_s):
            self._wait(number)
        for job in victims:
            self._wait(job.number)
        for at in freed:
            self._retry(at, arrival.at_s)

    def end_until(self, now_s: int) -> bool:
        """The next pod that ends by then; false where none does."""
        while self._ends and self._ends[0][0] <= now_s:
            at_s, number, run = heapq.heappop(self._ends)
            job = self.jobs[number]
            if job.seat is not None and job.runs == run:
                self.ended += 1
                self._retry(self._leave(job), at_s)
                return True
        return False

    @property
    def next_end_s(self) -> int:
        """When the next pod ends, at the latest at the end of the week."""
        return min(self._ends[0][0], END_S) if self._ends else END_S

    @property
    def waiting(self) -> list[_Job]:
        """Those that wait."""
        return [self.jobs[number] for queue in self._waiting.values() for number in queue]

    def _try(self, number: int, now_s: int) -> bool:
        job = self.jobs[number]
        pod = job.arrival.life.pod
        seat = self._placer.place(pod)
        if seat is None:
            return False
        self._cluster.seat(job, seat)
        if not job.runs:
            job.waits_s = now_s - job.arrival.at_s
        job.runs, job.began_s = job.runs + 1, now_s
        self.running[pod] += 1
        self.used_milli[size_of(pod)] += pod.asked_milli
        heapq.heappush(self._ends, (now_s + job.arrival.life.lasts_s - job.ran_s, number, job.runs))
        return True

    def _wait(self, number: int) -> None:
        arrival = self.jobs[number].arrival
        self._waiting.setdefault((arrival.is_high, arrival.life.pod), deque()).append(number)

    def _leave(self, job: _Job) -> int:
        pod, seat = job.arrival.life.pod, job.seat
        at = self._cluster.leave(job)
        self._placer.leave(pod, seat or (at, ()))
        self.running[pod] -= 1
        self.used_milli[size_of(pod)] -= pod.asked_milli
        return at

    def _retry(self, at: int, now_s: int) -> None:
        """Only this node has more room than when the waiting pods were tried last."""
        while True:
            first = [
                (not is_high, queue[0])
                for (is_high, pod), queue in self._waiting.items()
                if queue and fits(pod, self._cluster.states[at])
            ]
            if not first:
                return
            _, number = min(first)
            arrival = self.jobs[number].arrival
            if not self._try(number, now_s):
                raise AssertionError(f"{arrival.life.pod} fits on node {at} and was refused")
            self._waiting[arrival.is_high, arrival.life.pod].popleft()


def live(nodes: Sequence[NodeRow], coming: Sequence[Arrival], placer: Placer) -> Week:
    """The week under this policy, after a first day that is not measured."""
    running, now_s, learnt_s = _Running(nodes, placer), 0, 0
    areas = dict.fromkeys(SIZES, 0)
    learn = getattr(placer, "learn", None)
    for arrival in [*coming, None]:
        until_s = END_S if arrival is None else arrival.at_s
        while True:
            then_s = min(running.next_end_s, until_s)
            measured_s = max(then_s, WARM_S) - max(now_s, WARM_S)
            for size, used_milli in running.used_milli.items():
                areas[size] += used_milli * measured_s
            now_s = then_s
            if not running.end_until(now_s) and now_s >= until_s:
                break
        if learn is not None and now_s - learnt_s >= LEARN_S:
            learn(running.running)
            learnt_s = now_s
        if arrival is not None:
            running.arrive(arrival)
    return _told(nodes, running, areas)


def _told(nodes: Sequence[NodeRow], running: _Running, areas: Mapping[str, int]) -> Week:
    waits: dict[str, list[int]] = {size: [] for size in SIZES}
    for job in running.jobs:
        if job.arrival.at_s >= WARM_S and job.arrival.life.pod.num_gpu:
            waited = job.waits_s if job.runs else END_S - job.arrival.at_s
            waits[size_of(job.arrival.life.pod)].append(waited)
    capacity = sum(node.gpus for node in nodes) * WHOLE_MILLI
    left = {
        "arrived": len(running.jobs),
        "ended": running.ended,
        "running": sum(running.running.values()),
        "waiting": len(running.waiting),
    }
    most = capacity * (END_S - WARM_S)
    by_size = {size: 100 * area / most for size, area in areas.items()}
    return Week(100 * sum(areas.values()) / most, by_size, waits, running.preempted, left)


def by_day(first: Sequence[Life], last: Sequence[Life], seed: int) -> list[Sequence[Life]]:
    """A mix for each day of the simulation: on the first day this one, then each day a little more of the
    other."""
    drawing = random.Random(f"days {seed}")
    days = END_S // DAY_S
    return [
        [drawing.choice(last if drawing.randrange(days - 1) < day else first) for _ in first]
        for day in range(days)
    ]
