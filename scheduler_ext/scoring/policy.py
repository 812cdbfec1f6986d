"""Which of the cards that fit is best, and which of the nodes: the placement policies.

A policy's order of cards decides within a node, its score between nodes. Scores are only compared with each
other, never added: kube-scheduler gets ranks (`rank`).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler_ext.snapshot.free import Free
from timekeeper.core.values import Ask

Score = int  # the greater the better
NO_FIT: Score = -(2**62)  # in a row of scores: the pod does not fit
CardOrder = tuple[int, ...]  # the least first

_FIRST = 1_000_000  # what is looked at first outweighs what is looked at then


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What of a node a policy may look at beside the rooms of the cards that a request may use.

    ``models``: those of these cards, one alone where all have it. ``other_cards``: rooms and models of the
    other cards. ``cpu_left``: in thousandths of a core. ``uuids``: gives those of the cards that may be used.
    """

    models: tuple[str, ...]
    other_cards: tuple[tuple[Free, str], ...]
    cpu_left: int
    uuids: Callable[[], tuple[str, ...]]


class PerNode(Protocol):
    """A policy that looks further than the rooms in question."""

    def context_key(self, context: NodeContext, free_by_card: Sequence[Free]) -> Hashable:
        """What of it makes a difference: nodes that are seen alike are answered alike."""

    def for_node(self, context_key: Hashable, free_by_card: Sequence[Free]) -> "Policy":
        """The policy for a node that is seen so."""

    @property
    def batch(self) -> "BatchScoring | None":
        """How many nodes are weighed at once, where that is faster."""


class BatchScoring(Protocol):
    """What `PerNode.for_node` gives, for many nodes."""

    def score_batch(
        self,
        ask: Ask,
        free_by_card: Sequence[Sequence[Free]],
        models: Sequence[str],
        cpus_left: Sequence[int],
    ) -> list[Score]:
        """The scores of nodes for a pod of one ask, -1 where it does not fit. Each node's cards are of one
        model."""

    def score_cpu_only(
        self, spots: Sequence[Sequence[tuple[Free, str]]], cpus_left: Sequence[int]
    ) -> list[Score]:
        """How good nodes with such free cards are for a pod that asks for none."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``order``: the room before and after an ask, and the card's position -> what to sort by. ``score``: the
    rooms of all cards after the placement, and which of them it uses. ``per_node``: what both are made by for
    each node, where they are not the same for all."""

    name: str
    order: Callable[[Free, Free, int], CardOrder]
    score: Callable[[Sequence[Free], Sequence[int]], Score]
    per_node: PerNode | None = None


def _tightest(_before: Free, after: Free, _at: int) -> CardOrder:
    return after.left_milli, after.card_mib


def _fullest(free_by_card: Sequence[Free], used: Sequence[int]) -> Score:
    """Tightest on the cards used, then on the node as a whole."""
    tightness = -sum(free_by_card[at].left_milli for at in used)
    return tightness * _FIRST - sum(free.left_milli for free in free_by_card)


def _emptiest(before: Free, _after: Free, _at: int) -> CardOrder:
    return -before.left_milli, -before.card_mib


def _freest(free_by_card: Sequence[Free], _used: Sequence[int]) -> Score:
    """The freest single card, then the freest node."""
    left = [free.left_milli for free in free_by_card]
    return max(left, default=0) * _FIRST + sum(left)


def _all_alike(_rooms: Sequence[Free], _used: Sequence[int]) -> Score:
    return 0


BINPACK = Policy("binpack", _tightest, _fullest)
SPREAD = Policy("spread", _emptiest, _freest)
RANDOM = Policy("random", _tightest, _all_alike)  # among nodes; `rank` draws

BUILT = {policy.name: policy for policy in (BINPACK, SPREAD, RANDOM)}


def policy_named(word: str) -> Policy:
    """The policy of this name that looks at nothing but rooms; binpack for every other word."""
    return BUILT.get(word, BINPACK)
