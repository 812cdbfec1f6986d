"""The typical pods: what users request, by which `fragmentation` values what is left free.

A few shapes make up most requests (Weng et al., USENIX ATC'23, section 4.2). So the most frequent shapes that
together cover 95 % of the pods are kept, at most 100. They are one immutable value, which identifies the
answers computed with it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.dialects.others.claims import is_known
from timekeeper.core.values import WHOLE_MILLI, GPURequest

COVERED_PERCENT = 95
MAX_SHAPES = 100
FEWEST_PODS = 20  # fewer are not representative
ENOUGH_PODS = 4_096  # of a larger number, about this many are sampled
WAITING_PART = 20  # a namespace's waiting pods count as at most 1/20 of all bound ones


class TypicalPod(NamedTuple):
    """The shape of a typical pod. No devices: it requests no GPU."""

    cpu_milli: int  # thousandths of a core
    devices: int = 0  # number of cards
    share_milli: int = 0  # of each card, in thousandths
    memory_mib: int = 0  # of each card; 0: in proportion to the share
    models: tuple[str, ...] = ()
    exclude_models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TypicalPods:
    """The shapes of the cluster's pods."""

    counts: tuple[tuple[TypicalPod, int], ...]  # each shape with its number of pods, the most frequent first

    @property
    def pods(self) -> int:
        """How many pods in all."""
        return sum(count for _, count in self.counts)


def typical_pods_of(counts: Mapping[TypicalPod, int]) -> TypicalPods:
    """The most frequent shapes, until they cover 95 % of the pods; among equals the larger first."""
    enough = sum(counts.values()) * COVERED_PERCENT
    chosen: list[tuple[TypicalPod, int]] = []
    covered = 0
    for typical, count in sorted(counts.items(), key=lambda each: (each[1], each[0]), reverse=True):
        if 100 * covered >= enough or len(chosen) == MAX_SHAPES:
            break
        chosen.append((typical, count))
        covered += count
    return TypicalPods(tuple(chosen))


# Used until enough pods are known: mostly shares and single cards, as in the published traces
# (`docs/placement.md`), each with its usual part of a node's CPU.
BUILT_IN = TypicalPods(
    (
        (TypicalPod(8_000, 1, WHOLE_MILLI), 40),
        (TypicalPod(6_000, 1, 500), 30),
        (TypicalPod(4_000, 1, 250), 30),
        (TypicalPod(4_000), 14),
        (TypicalPod(64_000, 8, WHOLE_MILLI), 4),
        (TypicalPod(16_000, 2, WHOLE_MILLI), 2),
        (TypicalPod(32_000, 4, WHOLE_MILLI), 2),
    )
)


def learn(snapshot: Snapshot) -> TypicalPods:
    """The typical pods of the snapshot; the built-in ones while there are too few GPU pods.

    Bound pods count fully. Waiting pods cost nothing to create, so those of one namespace count together as
    at most 5 % of the bound ones, each shape in proportion, rounded down.

    Pods that request named resources do not count: what is left of such cards is not comparable. Pods
    without a GPU request count where the node has cards, all as one shape, since every free GPU is a
    fragment to them; and as at most as many as there are GPU pods, so that they do not outweigh these.
    """
    stride = 1 + len(snapshot.pods) // ENOUGH_PODS
    asking = islice((pod for pod in snapshot.pods.values() if not pod.terminal), 0, None, stride)
    gpu: Counter[TypicalPod] = Counter()
    waiting: dict[str, Counter[TypicalPod]] = {}
    for pod in asking:
        if pod.request is not None and is_known(pod.request) and not pod.request.asks[0].ask.resources:
            counts = gpu if pod.node else waiting.setdefault(pod.namespace, Counter())
            counts[typical_pod_of(pod.request, pod.cpu_milli)] += 1
    most = gpu.total() // WAITING_PART
    for counts in waiting.values():
        gpu.update(_at_most(counts, most))
    if gpu.total() < FEWEST_PODS:
        return BUILT_IN
    with_cards = {node.name for node in snapshot.nodes.values() if node.cards}
    others = (other for other in snapshot.non_gpu_pods.values() if other.cpu_milli)
    beside = sum(other.node in with_cards for other in others) // stride
    typical_pods = typical_pods_of(gpu)
    return (
        TypicalPods((*typical_pods.counts, (TypicalPod(0), min(beside, typical_pods.pods))))
        if beside
        else typical_pods
    )


def _at_most(counts: Counter[TypicalPod], most: int) -> dict[TypicalPod, int]:
    """The counts, reduced in proportion if their total exceeds ``most``."""
    total = counts.total()
    if total <= most:
        return counts
    return {typical: less for typical, count in counts.items() if (less := count * most // total)}


def typical_pod_of(request: GPURequest, cpu_milli: int) -> TypicalPod:
    """The pod's shape. Of several containers the largest request stands for all."""
    most = max(
        (each.ask for each in request.asks),
        key=lambda ask: (ask.devices * ask.share_milli, ask.devices * ask.memory_mib),
    )
    return TypicalPod(
        cpu_milli, most.devices, most.share_milli, most.memory_mib, request.models, request.exclude_models
    )


def differ_milli(one: TypicalPods, other: TypicalPods) -> int:
    """How far two values differ: the thousandths of the pods that would have to change."""
    mine, theirs = _shares(one), _shares(other)
    keys: Iterable[TypicalPod] = {**mine, **theirs}
    return sum(max(0, mine.get(key, 0) - theirs.get(key, 0)) for key in keys)


def _shares(typical_pods: TypicalPods) -> dict[TypicalPod, int]:
    return {typical: count * 1000 // typical_pods.pods for typical, count in typical_pods.counts}
