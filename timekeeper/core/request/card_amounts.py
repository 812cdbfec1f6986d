"""What is taken of one card: a share and memory, or amounts of its named resources."""

from collections.abc import Callable
from dataclasses import dataclass

from timekeeper.core.values import Amounts


@dataclass(frozen=True, slots=True)
class CardAmount:
    """An amount of one card: thousandths of its compute, and MiB of its memory."""

    share_milli: int
    memory_mib: int

    @property
    def resources(self) -> Amounts:
        """What it has of named resources."""
        return ()

    @property
    def tiles(self) -> frozenset[int]:
        """The numbers of its tiles."""
        return frozenset()

    def __add__(self, other: "CardAmount") -> "CardAmount":
        if type(self) is CardAmount and type(other) is CardAmount:
            return CardAmount(self.share_milli + other.share_milli, self.memory_mib + other.memory_mib)
        return _merged(self, other, int.__add__)

    def most(self, other: "CardAmount") -> "CardAmount":
        """The larger of both in each respect."""
        if type(self) is CardAmount and type(other) is CardAmount:
            share_milli = max(self.share_milli, other.share_milli)
            return CardAmount(share_milli, max(self.memory_mib, other.memory_mib))
        return _merged(self, other, max)


@dataclass(frozen=True, slots=True)
class NamedAmount(CardAmount):
    """An amount of a card with named resources. Others do without these fields, and are faster for it."""

    named: Amounts
    numbers: frozenset[int] = frozenset()

    @property
    def resources(self) -> Amounts:
        """What it has of named resources."""
        return self.named

    @property
    def tiles(self) -> frozenset[int]:
        """The numbers of its tiles."""
        return self.numbers


NO_AMOUNT = CardAmount(0, 0)


def _merged(one: CardAmount, other: CardAmount, by: Callable[[int, int], int]) -> CardAmount:
    mine, theirs = dict(one.resources), dict(other.resources)
    named = ((name, by(mine.get(name, 0), theirs.get(name, 0))) for name in {**mine, **theirs})
    share_milli = by(one.share_milli, other.share_milli)
    memory_mib = by(one.memory_mib, other.memory_mib)
    return NamedAmount(share_milli, memory_mib, tuple(sorted(named)), one.tiles | other.tiles)
