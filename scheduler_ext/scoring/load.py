"""The policy `load`: each pod goes where the cards are measured to do least."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_ext.scoring.policy import SPREAD, CardOrder, NodeContext, Policy, Score
from scheduler_ext.snapshot.free import Free

LoadByCard = Mapping[str, int]
"""How busy each card has lately been, in thousandths, by UUID. A new object whenever anything changes."""

LoadSource = Callable[[], LoadByCard | None]
"""The figures of this moment; None while there are none."""

UNMEASURED = 1000  # a card that nobody has measured is taken last


@dataclass(frozen=True, slots=True)
class LoadPerNode:
    """By these figures. Two are equal if the figures are one object."""

    figures: "CardLoads"

    @property
    def batch(self) -> None:
        """Each node is weighed alone."""
        return None

    def context_key(self, context: NodeContext, free_by_card: Sequence[Free]) -> tuple[int, ...]:
        """How busy each card in question is."""
        return tuple(self.figures.of(uuid) for uuid in context.uuids())

    def for_node(self, context_key: Hashable, free_by_card: Sequence[Free]) -> Policy:
        """The policy for a node that is seen so."""
        if not isinstance(context_key, tuple):
            raise TypeError("not what this policy has seen")
        return replace(LOAD, order=_LoadOnNode(context_key).order, score=_LoadOnNode(context_key).score)


class CardLoads:
    """Figures that are told from others by being another object."""

    def __init__(self, figures: LoadByCard) -> None:
        self.figures = figures

    def of(self, uuid: str) -> int:
        """How busy the card has been."""
        return self.figures.get(uuid, UNMEASURED)


@dataclass(frozen=True, slots=True)
class _LoadOnNode:
    busy: tuple[int, ...]

    def order(self, before: Free, after: Free, at: int) -> CardOrder:
        """The least busy card, of equally busy ones the emptiest."""
        return (self.busy[at], *SPREAD.order(before, after, at))

    def score(self, free_by_card: Sequence[Free], used: Sequence[int]) -> Score:
        """The least busy cards."""
        return -sum(self.busy[at] for at in used)


LOAD = replace(SPREAD, name="load")


def load(loads: CardLoads) -> Policy:
    """The policy by these figures."""
    return replace(LOAD, per_node=LoadPerNode(loads))
