"""Domains, the nodes with one value of a label such as a rack, and what they take of a gang at most. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.core.dialects.moments import cards_at_once


@dataclass(frozen=True, slots=True)
class Domain:
    """``sums``: for each shape of pods how many as many of its nodes as its place says take at most; no node
    takes fewer because others take more. ``cards``: the same of cards that no pod uses; empty for one shape,
    of which ``sums`` say all. ``free``: how empty its cards are."""

    value: str
    nodes: frozenset[str]
    sums: tuple[tuple[int, ...], ...]
    cards: tuple[int, ...] = ()
    free: int = 0

    def takes(self, shapes: Sequence[Sequence[Pod]]) -> int:
        """At most this number of these pods fits on its nodes; of one shape exactly this number."""
        counts = [
            min(len(pods), sums[-1] if sums else 0) for pods, sums in zip(shapes, self.sums, strict=True)
        ]
        if not self.cards:
            return sum(counts)
        needs = sorted((whole_cards(pods[0]), n) for pods, n in zip(shapes, counts, strict=True) if n)
        left, found = self.cards[-1], 0
        for need, count in needs:
            fit = min(count, left // need) if need else count
            left, found = left - fit * need, found + fit
        return found

    def least_nodes(self, shapes: Sequence[Sequence[Pod]]) -> int:
        """As many of these pods as it takes of each shape need at least this number of nodes."""
        wanted = [
            (sums, min(len(pods), sums[-1]))
            for pods, sums in zip(shapes, self.sums, strict=True)
            if pods and sums
        ]
        if self.cards:
            need = sum(len(pods) * whole_cards(pods[0]) for pods in shapes if pods)
            wanted.append((self.cards, min(need, self.cards[-1])))
        return max((bisect_left(sums, count) + 1 for sums, count in wanted if count), default=0)


def domains_of(
    values: Mapping[str, str],
    takes: Sequence[Mapping[str, int]],
    cards: Mapping[str, int],
    free: Callable[[str], int],
) -> list[Domain]:
    """The domains of these nodes, whose value of a label ``values`` has. ``takes``: for each shape, how many
    pods each node takes; ``cards``: how many of its cards no pod uses, empty for one shape;
    ``free``: how empty they are."""
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    return [
        Domain(
            value,
            frozenset(nodes),
            tuple(_most_first(each[name] for name in nodes if name in each) for each in takes),
            _most_first(cards[name] for name in nodes) if cards else (),
            sum(map(free, nodes)),
        )
        for value, nodes in by_value.items()
    ]


def _most_first(amounts: Iterable[int]) -> tuple[int, ...]:
    return tuple(accumulate(sorted(amounts, reverse=True)))


def label_value(node: NodeInfo, label: str) -> str | None:
    """The node's value of the label; None without it."""
    if node.node_object is None:
        return None
    labels = node.node_object.node_labels.labels  # in the order of their keys
    at = bisect_left(labels, (label,))
    return labels[at][1] if at < len(labels) and labels[at][0] == label else None


def whole_cards(pod: Pod) -> int:
    """At least this number of cards the pod uses alone."""
    request = pod.request
    if request is None or request.same_gpu or request.by_set:
        return 0
    return cards_at_once(each for each in request.asks if each.ask.whole and not each.ask.device)


def called(label: str, value: str = "") -> str:
    """The domain, or any of the label, for people: ``rack r2``."""
    return f"{label.rpartition('/')[2]} {value}".rstrip()
