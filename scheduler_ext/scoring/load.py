"""The policy `load`: each pod goes where the cards are measured to do least."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_ext.scoring.policy import SPREAD, Around, BindingArgs, Policy, Score
from scheduler_ext.snapshot.free import Room

Figures = Mapping[str, int]
"""How busy each card has lately been, in thousandths, by UUID. A new object whenever anything changes."""

Source = Callable[[], Figures | None]
"""The figures of this moment; None while there are none."""

UNMEASURED = 1000  # a card that nobody has measured is taken last


@dataclass(frozen=True, slots=True)
class Measured:
    """By these figures. Two are equal if the figures are one object."""

    figures: "Kept"

    @property
    def together(self) -> None:
        """Each node is weighed alone."""
        return None

    def seen(self, around: Around, rooms: Sequence[Room]) -> tuple[int, ...]:
        """How busy each card in question is."""
        return tuple(self.figures.of(uuid) for uuid in around.uuids())

    def here(self, seen: Hashable, rooms: Sequence[Room]) -> Policy:
        """The policy for a node that is seen so."""
        if not isinstance(seen, tuple):
            raise TypeError("not what this policy has seen")
        return replace(LOAD, order=_Here(seen).order, score=_Here(seen).score)


class Kept:
    """Figures that are told from others by being another object."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures

    def of(self, uuid: str) -> int:
        """How busy the card has been."""
        return self.figures.get(uuid, UNMEASURED)


@dataclass(frozen=True, slots=True)
class _Here:
    busy: tuple[int, ...]

    def order(self, before: Room, after: Room, at: int) -> BindingArgs:
        """The least busy card, of equally busy ones the emptiest."""
        return (self.busy[at], *SPREAD.order(before, after, at))

    def score(self, rooms: Sequence[Room], used: Sequence[int]) -> Score:
        """The least busy cards."""
        return -sum(self.busy[at] for at in used)


LOAD = replace(SPREAD, name="load")


def load(kept: Kept) -> Policy:
    """The policy by these figures."""
    return replace(LOAD, weighing=Measured(kept))
