"""What is free on one card, as the search sees it."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from timekeeper.core.request.cards import CardAmount, need
from timekeeper.core.values import WHOLE_MILLI, Ask, Card


class Free(NamedTuple):
    """Free compute in thousandths, free memory in MiB, and the card's whole memory.

    Cards with equal values are interchangeable for every request that may use both.
    """

    share_milli: int
    memory_mib: int
    card_mib: int

    @property
    def untouched(self) -> bool:
        """True if no pod is on the card: every pod takes something."""
        return self.share_milli == WHOLE_MILLI and self.memory_mib == self.card_mib

    @property
    def left_milli(self) -> int:
        """How empty the card is: free compute plus free memory, each in thousandths, 0 to 2000."""
        return self.share_milli + self.memory_mib * 1000 // self.card_mib


def free_of(card: Card, use: CardAmount) -> Free:
    """What ``use`` leaves of the card, never below zero, even if the card has shrunk."""
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
    """What the ask takes of a card with this much free; a whole card takes everything, whatever memory it
    asks."""
    return _need(ask, free.card_mib)


def takes(ask: Ask, free: Free) -> Free | None:
    """What is left after the ask, None if it does not fit. A whole card needs an untouched one."""
    use = _need(ask, free.card_mib)
    share, memory = free.share_milli - use.share_milli, free.memory_mib - use.memory_mib
    return None if share < 0 or memory < 0 else Free(share, memory, free.card_mib)


def takes_all(asks: Sequence[Ask], free: Free) -> Free | None:
    """What is left after all asks together, None if they do not fit."""
    left: Free | None = free
    for ask in asks:
        left = takes(ask, left) if left is not None else None
    return left


class FreeShape:
    """What is free on some cards, sorted. Equal shapes are one object, so that they are found by identity.

    ``near``: for each card the bits of the cards near it, itself included; empty where nearness does not
    matter.
    """

    __slots__ = ("free_by_card", "near")

    def __init__(self, free_by_card: tuple[Free, ...], near: tuple[int, ...] = ()) -> None:
        self.free_by_card, self.near = free_by_card, near


@lru_cache(maxsize=65_536)
def shape_of(free_by_card: tuple[Free, ...], near: tuple[int, ...] = ()) -> FreeShape:
    """The shape; ``free_by_card`` must be sorted. An evicted cache entry only costs a repeated search."""
    return FreeShape(free_by_card, near)
