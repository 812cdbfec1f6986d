"""What is free on one card, as the search sees it."""

from functools import lru_cache
from typing import NamedTuple

from timekeeper.core.cards import NO_USE, Use, need
from timekeeper.core.values import WHOLE_MILLI, Ask, Card


class Room(NamedTuple):
    """Free compute in thousandths, free memory in MiB, the card's whole memory, and whether nobody is on it.

    Two cards with equal rooms are the same to every request that may use both.
    """

    share_milli: int
    memory_mib: int
    card_mib: int
    untouched: bool

    @property
    def left_milli(self) -> int:
        """How empty the card is: free compute and free memory, each in thousandths, 0 to 2000."""
        return self.share_milli + self.memory_mib * 1000 // self.card_mib


def room_of(card: Card, use: Use) -> Room:
    """What the use leaves of the card: never less than nothing, whatever has shrunk under it."""
    return Room(
        max(0, WHOLE_MILLI - use.share_milli),
        max(0, card.memory_mib - use.memory_mib),
        card.memory_mib,
        use == NO_USE,
    )


@lru_cache(maxsize=4096)
def _need(ask: Ask, card_mib: int) -> Use:
    return need(ask, Card("", 0, "", card_mib))


def need_in(ask: Ask, room: Room) -> Use:
    """What the ask takes of a card with this room."""
    return _need(ask, room.card_mib)


def takes(ask: Ask, room: Room) -> Room | None:
    """What is left after the ask, None where it does not fit. Whole cards must be untouched in every way."""
    use = _need(ask, room.card_mib)
    share, memory = room.share_milli - use.share_milli, room.memory_mib - use.memory_mib
    if share < 0 or memory < 0 or (ask.whole and not room.untouched):
        return None
    return Room(share, memory, room.card_mib, False)


class Shape:
    """The rooms of some cards, sorted; one object for equal rooms, so that it is found by identity."""

    __slots__ = ("rooms",)

    def __init__(self, rooms: tuple[Room, ...]) -> None:
        self.rooms = rooms


@lru_cache(maxsize=65_536)
def shape_of(rooms: tuple[Room, ...]) -> Shape:
    """The shape of these rooms, which must be sorted. Should a long forgotten one be made a second time, only
    an answer is worked out twice."""
    return Shape(rooms)
