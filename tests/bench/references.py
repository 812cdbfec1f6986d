"""The published algorithms that Bursar is measured against, by the rules of the experiment and nothing else.

Random, BestFit, DotProd, GpuPacking, GpuClustering and FGD as Weng et al. (USENIX ATC'23) compare them, with
the constants of their simulator (`openb/README.md`). Nothing of Bursar is imported: these are oracles.

DeviceClaims is what kube-scheduler 1.36 does with pods that ask by device claims. Its default plugins know
CPU and memory alone (NodeResourcesFit with LeastAllocated, NodeResourcesBalancedAllocation). Its allocator
takes the first devices that fit, a share the first card with enough left. DeviceClaimsTightest takes the card
that a share fills best; DeviceClaimsPacked has the strategy MostAllocated. They score every node, where
kube-scheduler takes a sample of a large cluster.
"""

import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from tests.bench.experiment import WHOLE_MILLI, Experiment, PodRow

COVERED = 0.95
LARGEST_CPU = 128_000  # of a node, in thousandths of a core
LARGEST_GPU = 8_000  # of a node, in thousandths of a GPU
USUAL_CPU, USUAL_MIB = 100, 200  # what kube-scheduler scores by where a pod requests none

Cards = tuple[int, ...]  # places of the cards that the pod gets
Seat = tuple[int, Cards]  # the place of a node in the experiment's order, and its cards that a pod has


class State(NamedTuple):
    """What is left of a node, by card in thousandths; and the classes of the GPU pods that it hosts."""

    cpu_milli: int
    memory_mib: int
    cards: tuple[int, ...]
    model: str
    hosts: frozenset[str] = frozenset()
    allocatable: tuple[int, int] = (0, 0)  # CPU and memory of the empty node

    @property
    def idle_milli(self) -> int:
        """GPU left in all."""
        return sum(self.cards)


def fits(pod: PodRow, state: State) -> bool:
    """CPU, memory, model and cards."""
    if pod.cpu_milli > state.cpu_milli or pod.memory_mib > state.memory_mib:
        return False
    if pod.num_gpu and pod.models and state.model not in pod.models:
        return False
    return not pod.num_gpu or sum(left >= pod.gpu_milli for left in state.cards) >= pod.num_gpu


def tightest(pod: PodRow, state: State) -> Cards:
    """Whole GPUs take the first free ones, a share the card that it fills best; ties: the first."""
    fitting = [(left, at) for at, left in enumerate(state.cards) if left >= pod.gpu_milli]
    return tuple(at for _, at in sorted(fitting)[: pod.num_gpu])


def after(pod: PodRow, state: State, cards: Cards) -> State:
    """The node with the pod on these cards."""
    left = tuple(x - pod.gpu_milli if at in cards else x for at, x in enumerate(state.cards))
    hosts = state.hosts | {class_of(pod)} if pod.num_gpu else state.hosts
    return state._replace(
        cpu_milli=state.cpu_milli - pod.cpu_milli,
        memory_mib=state.memory_mib - pod.memory_mib,
        cards=left,
        hosts=hosts,
    )


def class_of(pod: PodRow) -> str:
    """What GpuClustering keeps together: shares, and pods of equally many whole GPUs."""
    return "share" if not pod.whole else f"{pod.num_gpu} GPU"


def before(pod: PodRow, state: State, cards: Cards) -> State:
    """The node without the pod that was on these cards."""
    left = tuple(x + pod.gpu_milli if at in cards else x for at, x in enumerate(state.cards))
    return state._replace(
        cpu_milli=state.cpu_milli + pod.cpu_milli, memory_mib=state.memory_mib + pod.memory_mib, cards=left
    )


Judge = Callable[[PodRow, State], tuple[int, Cards]]  # a node that fits -> its score, and the cards


def best_fit(pod: PodRow, state: State) -> tuple[int, Cards]:
    """The least left of both resources, each as a part of the largest node's."""
    cpu = (state.cpu_milli - pod.cpu_milli) / 2 / LARGEST_CPU
    gpu = (state.idle_milli - pod.asked_milli) / 2 / LARGEST_GPU
    return int(100 * (1 - cpu - gpu)), tightest(pod, state)


def dot_product(pod: PodRow, state: State) -> tuple[int, Cards]:
    """What is left least resembles what is asked."""
    cpu = state.cpu_milli / LARGEST_CPU * pod.cpu_milli / LARGEST_CPU
    gpu = state.idle_milli / LARGEST_GPU * pod.asked_milli / LARGEST_GPU
    return int(100 * (1 - (cpu + gpu) / 2)), tightest(pod, state)


def packing(pod: PodRow, state: State) -> tuple[int, Cards]:
    """Used cards first, then free cards of used nodes, then free nodes."""
    cards = tightest(pod, state)
    if not pod.num_gpu:
        return 0, cards
    if all(left == WHOLE_MILLI for left in state.cards):
        return max(33 - len(state.cards), len(state.cards)), cards
    free = sum(state.cards[at] == WHOLE_MILLI for at in cards)
    if free:
        return max(50 - free, 33), cards
    return max(100 - sum(state.cards[at] * 100 // WHOLE_MILLI for at in cards) // 10, 50), cards


def clustering(pod: PodRow, state: State) -> tuple[int, Cards]:
    """Pods of one class beside each other."""
    if not pod.num_gpu:
        return 0, ()
    base = 25 * (LARGEST_GPU - state.idle_milli) // LARGEST_GPU
    if class_of(pod) in state.hosts:
        base += 75 if len(state.hosts) == 1 else 50
    elif not state.hosts:
        base += 25
    return base, tightest(pod, state)


def first(pod: PodRow, state: State) -> Cards:
    """The first cards with enough left."""
    return tuple(at for at, left in enumerate(state.cards) if left >= pod.gpu_milli)[: pod.num_gpu]


def of_kube_scheduler(
    pod: PodRow, state: State, packs: bool = False, choose: Callable[[PodRow, State], Cards] = first
) -> tuple[int, Cards]:
    """``packs``: by MostAllocated, else by LeastAllocated. Each part is of 100, in whole numbers."""
    left = (state.cpu_milli, state.memory_mib)
    asked = (pod.cpu_milli or USUAL_CPU, pod.memory_mib or USUAL_MIB)
    whole = state.allocatable
    parts = []
    for total, idle, wants in zip(whole, left, asked, strict=True):
        used = min(total - idle + wants, total)
        parts.append((used if packs else total - used) * 100 // total)
    taken = (pod.cpu_milli, pod.memory_mib)
    balance = _balance(whole, [idle - wants for idle, wants in zip(left, taken, strict=True)])
    balance = 50 + int((50 + balance - _balance(whole, left)) / 2)
    return sum(parts) // 2 + (balance if any(taken) else 0), choose(pod, state)


def _balance(whole: Sequence[int], left: Sequence[int]) -> int:
    """100 where CPU and memory are used to the same part."""
    cpu, memory = ((total - idle) / total for total, idle in zip(whole, left, strict=True))
    return int((1 - abs(cpu - memory) / 2) * 100)


class Typical(NamedTuple):
    """A shape that pods typically have, and how often."""

    cpu_milli: int
    gpu_milli: int
    num_gpu: int
    models: tuple[str, ...]
    part: float


def typical(listed: Sequence[PodRow]) -> list[Typical]:
    """The most frequent shapes until 95 % of the list are covered; of equally frequent ones the larger."""
    shapes = Counter((pod.cpu_milli, pod.gpu_milli, pod.num_gpu, pod.models) for pod in listed)
    ordered = sorted(shapes.items(), key=lambda each: (each[1], each[0]), reverse=True)
    sums = list(accumulate(count for _, count in ordered))
    kept = next(at for at, covered in enumerate(sums, 1) if covered >= COVERED * len(listed))
    return [Typical(*shape, count / sums[kept - 1]) for shape, count in ordered[:kept]]


def fragment(shapes: Sequence[Typical], cpu_milli: int, cards: Sequence[int], model: str) -> float:
    """The GPU of a node, in thousandths, that a typical pod could not use, expected."""
    idle, total = sum(cards), 0.0
    for each in shapes:
        lost = idle
        if each.num_gpu and cpu_milli >= each.cpu_milli and (not each.models or model in each.models):
            usable = [left for left in cards if left >= each.gpu_milli]
            if len(usable) >= each.num_gpu:
                lost = idle - sum(usable)
        total += each.part * lost
    return total


class Gradient:
    """FGD: the least growth of the fragment. CPU counts only by which typical pods it still suffices for, and
    the order of the cards not at all, so that few states differ."""

    def __init__(self, experiment: Experiment) -> None:
        self._shapes = typical(experiment.listed)
        self._cpus = sorted({each.cpu_milli for each in self._shapes})
        self._known: dict[tuple[int, tuple[int, ...], str], float] = {}

    def __call__(self, pod: PodRow, state: State) -> tuple[int, Cards]:
        """Of a share's cards the one of the best score, the first of several such."""
        before = self._fragment(state.cpu_milli, state.cards, state.model)
        best: tuple[int, Cards] = (-1, ())
        tried = set()
        for cards in self._ways(pod, state):
            kind = tuple(state.cards[at] for at in cards)
            if kind in tried:
                continue
            tried.add(kind)
            then = after(pod, state, cards)
            growth = self._fragment(then.cpu_milli, then.cards, then.model) - before
            score = int(100 / (1 + math.exp(growth / 1000)))
            if score > best[0]:
                best = (score, cards)
        return best

    def _ways(self, pod: PodRow, state: State) -> list[Cards]:
        if pod.num_gpu == 1:
            return [(at,) for at, left in enumerate(state.cards) if left >= pod.gpu_milli]
        return [tightest(pod, state)]

    def _fragment(self, cpu_milli: int, cards: tuple[int, ...], model: str) -> float:
        key = bisect_right(self._cpus, cpu_milli), tuple(sorted(cards)), model
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = fragment(self._shapes, cpu_milli, key[1], model)
        return known


class _Board:
    """One shape's scores of all nodes, -1 where it does not fit; as of the so-manieth change."""

    def __init__(self, nodes: int) -> None:
        self.scores = [-1] * nodes
        self.cards: list[Cards] = [()] * nodes
        self.seen = -1


class Reference:
    """Places each pod where ``judge`` finds it best, ties by the order of the nodes. One placement changes
    one node, so only that one is judged anew when a pod of a known shape comes."""

    def __init__(self, experiment: Experiment, judge: Judge, spread: bool = False) -> None:
        self._judge, self._spread = judge, spread
        self._nodes = [
            State(
                node.cpu_milli,
                node.memory_mib,
                (WHOLE_MILLI,) * node.gpus,
                node.model,
                allocatable=(node.cpu_milli, node.memory_mib),
            )
            for node in experiment.nodes
        ]
        self._changes: list[int] = []
        self._boards: dict[PodRow, _Board] = {}

    def place(self, pod: PodRow) -> Seat | None:
        """Where it found a place, None where it found none."""
        board = self._followed(pod)
        scores = _min_max(board.scores) if self._spread else board.scores
        most = max(scores)
        if most < 0:
            return None
        at = scores.index(most)
        cards = board.cards[at]
        self.take(at, pod, cards)
        return at, cards

    def leave(self, pod: PodRow, seat: Seat) -> None:
        """The pod has ended. What its class was is not forgotten: GpuClustering alone asks for that."""
        at, cards = seat
        self._nodes[at] = before(pod, self._nodes[at], cards)
        self._changes.append(at)

    def take(self, at: int, pod: PodRow, cards: Cards) -> None:
        """The pod is on these cards of the node from now on."""
        self._nodes[at] = after(pod, self._nodes[at], cards)
        self._changes.append(at)

    def feasible(self, pod: PodRow) -> list[int]:
        """The places of the nodes that it fits on."""
        return [at for at, score in enumerate(self._followed(pod).scores) if score >= 0]

    def state(self, at: int) -> State:
        """The node at this place in the order, as it is now."""
        return self._nodes[at]

    def _followed(self, pod: PodRow) -> _Board:
        board = self._boards.get(pod)
        if board is None:
            board = self._boards[pod] = _Board(len(self._nodes))
        news = range(len(self._nodes)) if board.seen < 0 else dict.fromkeys(self._changes[board.seen :])
        board.seen = len(self._changes)
        for at in news:
            state = self._nodes[at]
            if fits(pod, state):
                board.scores[at], board.cards[at] = self._judge(pod, state)
            else:
                board.scores[at] = -1
        return board


def _min_max(scores: list[int]) -> list[int]:
    """The scores of the nodes that fit spread over 0 to 100, in whole numbers."""
    there = [score for score in scores if score >= 0]
    least, span = min(there, default=0), max(there, default=0) - min(there, default=0)
    if span <= 100:
        return scores  # whole numbers with more room between them: nothing becomes equal, no order changes
    return [(score - least) * 100 // span if score >= 0 else -1 for score in scores]


class Random:
    """Any node that fits, and any card of it."""

    def __init__(self, experiment: Experiment) -> None:
        self._nodes = Reference(experiment, lambda pod, state: (0, ()))
        self._random = random.Random(experiment.seed)

    def place(self, pod: PodRow) -> Seat | None:
        """Where it found a place, None where it found none."""
        feasible = self._nodes.feasible(pod)
        if not feasible:
            return None
        at = self._random.choice(feasible)
        state = self._nodes.state(at)
        if pod.whole:
            cards = tightest(pod, state)
        else:
            fitting = [(card,) for card, left in enumerate(state.cards) if left >= pod.gpu_milli]
            cards = self._random.choice(fitting) if pod.num_gpu else ()
        self._nodes.take(at, pod, cards)
        return at, cards

    def leave(self, pod: PodRow, seat: Seat) -> None:
        """The pod has ended."""
        self._nodes.leave(pod, seat)


REFERENCES: dict[str, Callable[[Experiment], Random | Reference]] = {
    "Random": Random,
    "DotProd": lambda experiment: Reference(experiment, dot_product),
    "GpuClustering": lambda experiment: Reference(experiment, clustering),
    "GpuPacking": lambda experiment: Reference(experiment, packing),
    "BestFit": lambda experiment: Reference(experiment, best_fit, spread=True),
    "FGD": lambda experiment: Reference(experiment, Gradient(experiment)),
    "DeviceClaims": lambda experiment: Reference(experiment, of_kube_scheduler),
    "DeviceClaimsTightest": lambda experiment: Reference(
        experiment, partial(of_kube_scheduler, choose=tightest)
    ),
    "DeviceClaimsPacked": lambda experiment: Reference(experiment, partial(of_kube_scheduler, packs=True)),
}
