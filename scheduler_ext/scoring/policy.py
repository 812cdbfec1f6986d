"""The placement policies: which of the cards that fit is best, and which of the nodes.

A policy's order of cards decides within a node, its score between nodes. Scores are only compared, never
added: kube-scheduler gets ranks (`rank`).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from scheduler_ext.snapshot.free import Free
from timekeeper.core.values import Ask

Score = int  # greater is better
NO_FIT: Score = -(2**62)  # in an array of scores: the pod does not fit
CardOrder = tuple[int, ...]  # sort key of a card, least first

_FIRST = 1_000_000  # the first criterion outweighs the second


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What a policy may consider of a node beside what is free on the cards that the request may use."""

    models: tuple[str, ...]  # of the cards that the request may use; one entry if all are equal
    other_cards: tuple[tuple[Free, str], ...]  # the other cards: what is free, and the model
    cpu_left: int  # in thousandths of a core
    uuids: Callable[[], tuple[str, ...]]  # returns those of the cards that the request may use
    node: str  # its name


class PerNode(Protocol):
    """A policy that considers more than free amounts, so that its order and score differ by node."""

    def context_key(self, context: NodeContext, free_by_card: Sequence[Free]) -> Hashable:
        """The part of the context that matters: nodes with equal keys and shapes get equal answers."""

    def for_node(self, context_key: Hashable, free_by_card: Sequence[Free]) -> "Policy":
        """The policy for a node with this key."""

    @property
    def batch(self) -> "BatchScoring | None":
        """Scores many nodes at once, where that is faster."""


class BatchScoring(Protocol):
    """The scores of `PerNode.for_node`, for many nodes at once."""

    def score_batch(
        self,
        ask: Ask,
        free_by_card: Sequence[Sequence[Free]],
        models: Sequence[str],
        cpus_left: Sequence[int],
    ) -> list[Score]:
        """The scores of nodes for a pod with one ask, -1 where it does not fit. The cards of a node are of
        one model."""

    def score_cpu_only(
        self, spots: Sequence[Sequence[tuple[Free, str]]], cpus_left: Sequence[int]
    ) -> list[Score]:
        """The scores of nodes with these free cards for a pod that requests no GPU."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How cards and nodes are compared; the smaller key and the higher score are better."""

    name: str
    # (free before, free after, position of the card) -> sort key of the card
    order: Callable[[Free, Free, int], CardOrder]
    # (free amounts after the placement, positions of the used cards) -> score of the node
    score: Callable[[Sequence[Free], Sequence[int]], Score]
    per_node: PerNode | None = None  # set if order and score depend on the node
    # containers get their cards one after the other in this order, and there is no other layout
    greedy: bool = False


def _tightest(_before: Free, after: Free, _at: int) -> CardOrder:
    return after.left_milli, after.card_mib


def _fullest(free_by_card: Sequence[Free], used: Sequence[int]) -> Score:
    """Tightest on the used cards, then on the whole node."""
    tightness = -sum(free_by_card[at].left_milli for at in used)
    return tightness * _FIRST - sum(free.left_milli for free in free_by_card)


def _emptiest(before: Free, _after: Free, _at: int) -> CardOrder:
    return -before.left_milli, -before.card_mib


def _freest(free_by_card: Sequence[Free], _used: Sequence[int]) -> Score:
    """The freest single card, then the freest node."""
    left = [free.left_milli for free in free_by_card]
    return max(left, default=0) * _FIRST + sum(left)


def _all_alike(_free: Sequence[Free], _used: Sequence[int]) -> Score:
    return 0


BINPACK = Policy("binpack", _tightest, _fullest)
SPREAD = Policy("spread", _emptiest, _freest)
RANDOM = Policy("random", _tightest, _all_alike)  # among nodes, drawn by `rank`


def as_its_plugin_chooses(policy: Policy) -> Policy:
    """The policy for pods whose node plugin chooses again and refuses a pod with another card
    (`Dialect.plugin_repeats`): nodes are compared as before."""
    return replace(policy, order=_least_free, greedy=True)


def _least_free(before: Free, _after: Free, _at: int) -> CardOrder:
    return before.share_milli, before.memory_mib


BUILT = {policy.name: policy for policy in (BINPACK, SPREAD, RANDOM)}
