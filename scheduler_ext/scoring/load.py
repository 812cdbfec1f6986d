"""The policy `load`: a pod goes where the cards are measured to be least busy."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_ext.scoring.policy import SPREAD, CardOrder, NodeContext, Policy, Score
from scheduler_ext.snapshot.free import Free

LoadByCard = Mapping[str, int]
"""How busy each card is, in thousandths, by UUID, or by node and UUID, such as ``a/card0``, where the node's
plugin tells none. A new object whenever anything changes."""

LoadSource = Callable[[], LoadByCard | None]
"""Returns the present measurements; None while there are none."""

UNMEASURED = 1000  # a card without a measurement is taken last


@dataclass(frozen=True, slots=True)
class LoadPerNode:
    """`load` by these measurements. Instances are equal if their measurements are the same object."""

    figures: "CardLoads"

    @property
    def batch(self) -> None:
        """None: each node is scored alone."""
        return None

    def context_key(self, context: NodeContext, free_by_card: Sequence[Free]) -> tuple[int, ...]:
        """How busy each card in question is."""
        return tuple(self.figures.of(context.node, uuid) for uuid in context.uuids())

    def for_node(self, context_key: Hashable, free_by_card: Sequence[Free]) -> Policy:
        """See `PerNode`. Raises TypeError for a key of another policy."""
        if not isinstance(context_key, tuple):
            raise TypeError("not a key of this policy")
        return replace(LOAD, order=_LoadOnNode(context_key).order, score=_LoadOnNode(context_key).score)


class CardLoads:
    """Measurements that are compared by identity."""

    def __init__(self, figures: LoadByCard) -> None:
        self.figures = figures

    def of(self, node: str, uuid: str) -> int:
        """How busy the card is, in thousandths."""
        busy = self.figures.get(uuid)
        return self.figures.get(f"{node}/{uuid}", UNMEASURED) if busy is None else busy


@dataclass(frozen=True, slots=True)
class _LoadOnNode:
    busy: tuple[int, ...]

    def order(self, before: Free, after: Free, at: int) -> CardOrder:
        """The least busy card first, among equally busy ones the emptiest."""
        return (self.busy[at], *SPREAD.order(before, after, at))

    def score(self, free_by_card: Sequence[Free], used: Sequence[int]) -> Score:
        """The least busy cards."""
        return -sum(self.busy[at] for at in used)


LOAD = replace(SPREAD, name="load")


def load(loads: CardLoads) -> Policy:
    """The policy `load`, with the cards' measured use."""
    return replace(LOAD, per_node=LoadPerNode(loads))
