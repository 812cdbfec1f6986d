"""What is free on one card, as the search sees it."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from timekeeper.core.request.cards import CardAmount, need
from timekeeper.core.values import WHOLE_MILLI, Ask, Card


class Free(NamedTuple):
    """Free compute in thousandths, free memory in MiB, and the card's whole memory.

    Two cards with equal rooms are the same to every request that may use both.
    """

    share_milli: int
    memory_mib: int
    card_mib: int

    @property
    def untouched(self) -> bool:
        """True where nobody is on the card: every pod takes something."""
        return self.share_milli == WHOLE_MILLI and self.memory_mib == self.card_mib

    @property
    def left_milli(self) -> int:
        """How empty the card is: free compute and free memory, each in thousandths, 0 to 2000."""
        return self.share_milli + self.memory_mib * 1000 // self.card_mib


def free_of(card: Card, use: CardAmount) -> Free:
    """What the use leaves of the card: never less than nothing, whatever has shrunk under it."""
    return Free(
        max(0, WHOLE_MILLI - use.share_milli),
        max(0, card.memory_mib - use.memory_mib),
        card.memory_mib,
    )


@lru_cache(maxsize=4096)
def _need(ask: Ask, card_mib: int) -> CardAmount:
    use = need(ask, Card("", 0, "", card_mib))
    return CardAmount(use.share_milli, card_mib) if ask.whole else use


def need_in(ask: Ask, free: Free) -> CardAmount:
    """What the ask keeps others from on a card with this room; of a whole card that is everything, whatever
    memory was asked."""
    return _need(ask, free.card_mib)


def takes(ask: Ask, free: Free) -> Free | None:
    """What is left after the ask, None where it does not fit. A whole card takes everything, so it must be
    untouched in every way, and nothing goes beside it."""
    use = _need(ask, free.card_mib)
    share, memory = free.share_milli - use.share_milli, free.memory_mib - use.memory_mib
    return None if share < 0 or memory < 0 else Free(share, memory, free.card_mib)


def takes_all(asks: Sequence[Ask], free: Free) -> Free | None:
    """What is left after all of these asks together, None where they do not fit."""
    left: Free | None = free
    for ask in asks:
        left = takes(ask, left) if left is not None else None
    return left


class FreeShape:
    """The rooms of some cards, sorted; one object for equal rooms, so that it is found by identity.

    ``near``: for each card the bits of those that are near it, itself among them; empty where that does not
    matter to who asks.
    """

    __slots__ = ("free_by_card", "near")

    def __init__(self, free_by_card: tuple[Free, ...], near: tuple[int, ...] = ()) -> None:
        self.free_by_card, self.near = free_by_card, near


@lru_cache(maxsize=65_536)
def shape_of(free_by_card: tuple[Free, ...], near: tuple[int, ...] = ()) -> FreeShape:
    """The shape of these rooms, which must be sorted. Should a long forgotten one be made a second time, only
    an answer is worked out twice."""
    return FreeShape(free_by_card, near)
