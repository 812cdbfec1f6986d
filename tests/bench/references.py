"""What Bursar is measured against, by the rules of the experiment and nothing else.

FGD is the best of the algorithms that Weng et al. (USENIX ATC'23) compare, with the constants of their
simulator (`openb/README.md`, which has the published figures of the others). Nothing of Bursar is imported:
these are oracles.

DeviceClaims is what kube-scheduler 1.36 does with pods that ask by device claims. Its default plugins know
CPU and memory alone (NodeResourcesFit with LeastAllocated, NodeResourcesBalancedAllocation). Its allocator
takes the first devices that fit, a share the first card with enough left. It scores every node, where
kube-scheduler takes a sample of a large cluster.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from tests.bench.experiment import WHOLE_MILLI, Experiment, PodRow

COVERED = 0.95
USUAL_CPU, USUAL_MIB = 100, 200  # what kube-scheduler scores by where a pod requests none

Cards = tuple[int, ...]  # places of the cards that the pod gets
Seat = tuple[int, Cards]  # the place of a node in the experiment's order, and its cards that a pod has


class State(NamedTuple):
    """What is left of a node, by card in thousandths."""

    cpu_milli: int
    memory_mib: int
    cards: tuple[int, ...]
    model: str
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
    return state._replace(
        cpu_milli=state.cpu_milli - pod.cpu_milli, memory_mib=state.memory_mib - pod.memory_mib, cards=left
    )


Judge = Callable[[PodRow, State], tuple[int, Cards]]  # a node that fits -> its score, and the cards


def first(pod: PodRow, state: State) -> Cards:
    """The first cards with enough left."""
    return tuple(at for at, left in enumerate(state.cards) if left >= pod.gpu_milli)[: pod.num_gpu]


def of_kube_scheduler(pod: PodRow, state: State) -> tuple[int, Cards]:
    """Each part is of 100, in whole numbers."""
    left = (state.cpu_milli, state.memory_mib)
    asked = (pod.cpu_milli or USUAL_CPU, pod.memory_mib or USUAL_MIB)
    whole = state.allocatable
    parts = []
    for total, idle, wants in zip(whole, left, asked, strict=True):
        parts.append(max(idle - wants, 0) * 100 // total)
    taken = (pod.cpu_milli, pod.memory_mib)
    balance = _balance(whole, [idle - wants for idle, wants in zip(left, taken, strict=True)])
    balance = 50 + int((50 + balance - _balance(whole, left)) / 2)
    return sum(parts) // 2 + (balance if any(taken) else 0), first(pod, state)


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

    def __init__(self, experiment: Experiment, judge: Judge) -> None:
        self._judge = judge
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
        most = max(board.scores)
        if most < 0:
            return None
        at = board.scores.index(most)
        cards = board.cards[at]
        self._nodes[at] = after(pod, self._nodes[at], cards)
        self._changes.append(at)
        return at, cards

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


REFERENCES: dict[str, Callable[[Experiment], Reference]] = {
    "FGD": lambda experiment: Reference(experiment, Gradient(experiment)),
    "DeviceClaims": lambda experiment: Reference(experiment, of_kube_scheduler),
}
