"""What is free on one card, as the search sees it."""

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, Self
from weakref import WeakValueDictionary

from scheduler_ext.model.topology import Near, Rungs
from timekeeper.core.request.card_amounts import CardAmount
from timekeeper.core.request.cards import need
from timekeeper.core.values import TILES, WHOLE_MILLI, Amounts, Ask, Card

Left = tuple[tuple[str, int, int], ...]  # name of each named resource, what is left of it, and the whole
TileLinks = tuple[tuple[int, int, int, int], ...]  # position of a card and its tile, likewise of the other


class _Free(NamedTuple):
    share_milli: int
    memory_mib: int
    card_mib: int


class Free(_Free):
    """Free compute in thousandths, free memory in MiB, and the card's whole memory.

    Cards with equal values are interchangeable for every request that may use both.
    """

    __slots__ = ()

    @property
    def resources(self) -> Left:
        """What is left of named resources."""
        return ()

    @property
    def preferred(self) -> bool:
        """True if the card is to be used before others."""
        return False

    @property
    def untouched(self) -> bool:
        """True if no pod is on the card: every pod takes something."""
        return self.share_milli == WHOLE_MILLI and self.memory_mib == self.card_mib

    @property
    def left_milli(self) -> int:
        """How empty the card is: free compute plus free memory, each in thousandths, 0 to 2000."""
        return self.share_milli + self.memory_mib * 1000 // self.card_mib


_LEFT, _PREFERRED = itemgetter(3), itemgetter(4)


class NamedFree(Free):
    """What is free on a card with named resources. Its first three members follow from the resource of which
    the smallest part is left, so that every policy can compare it. Cards without such resources do without
    the two further members, and are faster for it."""

    __slots__ = ()

    def __new__(cls, left: Left, card_mib: int, preferred: bool) -> Self:
        parts = (WHOLE_MILLI * there // whole for _, there, whole in left if whole)
        share_milli = min(parts, default=WHOLE_MILLI)
        memory_mib = card_mib * share_milli // WHOLE_MILLI
        return tuple.__new__(cls, (share_milli, memory_mib, card_mib, left, preferred))

    @property
    def resources(self) -> Left:
        """What is left of named resources."""
        left: Left = _LEFT(self)
        return left

    @property
    def preferred(self) -> bool:
        """Whether the card is preferred to others."""
        return bool(_PREFERRED(self))


def free_of(card: Card, use: CardAmount) -> Free:
    """What ``use`` leaves of the card, never below zero, even if the card has shrunk."""
    if card.resources:
        tiles = sum(tile not in use.tiles for tile in card.tiles)
        return _named_free(card.resources, use.resources, tiles, card.memory_mib, card.preferred)
    return Free(
        max(0, WHOLE_MILLI - use.share_milli),
        max(0, card.memory_mib - use.memory_mib),
        card.memory_mib,
    )


@lru_cache(maxsize=4096)  # the cards of a cluster are few kinds, on which pods of few templates are
def _named_free(whole: Amounts, used: Amounts, tiles: int, card_mib: int, preferred: bool) -> Free:
    taken = dict(used)
    left = tuple(
        (name, tiles if name == TILES else max(0, most - taken.get(name, 0)), most) for name, most in whole
    )
    return NamedFree(left, card_mib, preferred)


@lru_cache(maxsize=4096)
def _need(ask: Ask, card_mib: int) -> CardAmount:
    use = need(ask, Card("", 0, "", card_mib))
    if card_mib < min((each.min_memory_mib for each in ask.sets), default=0):
        return CardAmount(WHOLE_MILLI + 1, card_mib)  # more than any card of this size has
    return CardAmount(use.share_milli, card_mib) if ask.whole else use


def need_in(ask: Ask, free: Free) -> CardAmount:
    """What the ask takes of a card with this much free; a whole card takes everything, whatever memory it
    asks."""
    return _need(ask, free.card_mib)


def takes(ask: Ask, free: Free) -> Free | None:
    """What is left after the ask, None if it does not fit. A whole card needs an untouched one."""
    if ask.resources or type(free) is not Free:
        return _takes_named(ask, free)
    use = _need(ask, free.card_mib)
    share, memory = free.share_milli - use.share_milli, free.memory_mib - use.memory_mib
    return None if share < 0 or memory < 0 else Free(share, memory, free.card_mib)


def less(free: Free, use: CardAmount) -> Free:
    """What is left after this use, which may be below zero."""
    if free.resources:
        used = dict(use.resources)
        left = tuple((name, there - used.get(name, 0), whole) for name, there, whole in free.resources)
        return NamedFree(left, free.card_mib, free.preferred)
    return Free(free.share_milli - use.share_milli, free.memory_mib - use.memory_mib, free.card_mib)


def has_more(new: Free, old: Free) -> bool:
    """True if a request may fit now that did not fit before, on the same card."""
    if new.resources:
        return any(mine[1] > was[1] for mine, was in zip(new.resources, old.resources, strict=True))
    return new.share_milli > old.share_milli or new.memory_mib > old.memory_mib


@lru_cache(maxsize=8_192)
def _takes_named(ask: Ask, free: Free) -> Free | None:
    """As `takes`, where ask or card names resources. Both must: nothing else of such a card is allocated."""
    wanted = dict(ask.resources)
    left = tuple((name, there - wanted.pop(name, 0), whole) for name, there, whole in free.resources)
    if not ask.resources or wanted or any(there < 0 for _, there, _ in left):
        return None
    return NamedFree(left, free.card_mib, free.preferred)


def takes_all(asks: Sequence[Ask], free: Free) -> Free | None:
    """What is left after all asks together, None if they do not fit."""
    left: Free | None = free
    for ask in asks:
        left = takes(ask, left) if left is not None else None
    return left


class FreeShape:
    """What is free on some cards, sorted. Equal shapes are one object, so that they are found by identity.

    ``near``: for each card the bits of the cards near it, itself included; empty where nearness does not
    matter. ``rungs``: several of these, from the closest cards to the farthest that the pod accepts, each
    with its closeness; the first that a layout meets counts. ``groups``: the linked cards, and those of one
    NUMA node, for the groups of `CardSet`. ``links``: the free Xe links, each with card and tile of both
    ends. Each is empty where it does not matter.
    """

    __slots__ = ("__weakref__", "free_by_card", "groups", "links", "near", "rungs")

    def __init__(
        self,
        free_by_card: tuple[Free, ...],
        near: Near = (),
        links: TileLinks = (),
        rungs: Rungs = (),
        groups: tuple[Near, ...] = (),
    ) -> None:
        self.free_by_card, self.near, self.links = free_by_card, near, links
        self.rungs, self.groups = rungs, groups


_SHAPES: WeakValueDictionary[tuple[object, ...], FreeShape] = WeakValueDictionary()


def shape_of(
    free_by_card: tuple[Free, ...],
    near: Near = (),
    links: TileLinks = (),
    rungs: Rungs = (),
    groups: tuple[Near, ...] = (),
) -> FreeShape:
    """The shape; ``free_by_card`` must be sorted. It is kept while a node or a cached answer has it, for a
    cluster meets new ones as long as pods come and go. Two threads may make one twice, which only costs a
    repeated search."""
    key = free_by_card, near, links, rungs, groups
    found = _SHAPES.get(key)
    if found is None:
        found = _SHAPES[key] = FreeShape(*key)
    return found
