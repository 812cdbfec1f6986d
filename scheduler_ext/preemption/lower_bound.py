"""The least number of pods that must leave, computed card by card: a cheap bound, so that few sets of victims
need a full search.

For each ask alone it is known how much each card lacks, and so how many of its pods must leave at least, if
these are always the largest. An ask for n cards takes the n cards that need the fewest; so do all asks above
half a card together, for no two of them share a card. A pod on several cards may count for each. The bound is
never above the truth. It may be below, for it treats compute and memory apart and otherwise ignores that asks
compete.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from scheduler_ext.snapshot.allocation import uses_of
from scheduler_ext.snapshot.host_left import HostAmounts
from scheduler_ext.snapshot.node_info import NodeInfo
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount
from timekeeper.core.request.cards import allowed, need
from timekeeper.core.values import WHOLE_MILLI, Ask, Card, GPURequest

NEVER = 1_000_000  # more pods than any node has: no set of victims suffices


class ClassHoldings(NamedTuple):
    """What each pod of a class gives back, and how many they are."""

    uses: tuple[tuple[str, CardAmount], ...]  # by the card's UUID
    size: int
    host: HostAmounts = ()  # CPU, memory and other resources


Holdings = Sequence[ClassHoldings]
Freed = tuple[tuple[int, int], ...]  # share and memory given back, by card; then each lacking resource, and 0


class LowerBound:
    """For one request on one node. ``held``: the classes of pods that may leave, in the order of the
    search. ``lacks``: what is lacking beside cards; each such resource is counted like one more card."""

    def __init__(self, request: GPURequest, node: NodeInfo, held: Holdings, lacks: HostAmounts = ()) -> None:
        cards = [
            card
            for card, free in zip(node.cards, node.free_by_card, strict=True)
            if free is not None and allowed(request, card)
        ]
        at = {card.uuid: place for place, card in enumerate(cards)}
        self._cards, self._host = len(cards), [amount for _, amount in lacks]
        beside = {resource: place for place, (resource, _) in enumerate(lacks, len(cards))}
        self._held = [
            (
                [(at[u], use) for u, use in each.uses if u in at]
                + [(beside[r], CardAmount(amount, 0)) for r, amount in each.host if r in beside],
                each.size,
            )
            for each in held
        ]
        self._by_plugin = node.node_object is not None and node.node_object.plugin_chooses
        used = uses_of(node.allocations)
        on_cards = [used.get(card.uuid, NO_AMOUNT) for card in cards]
        both = list(zip(cards, on_cards, strict=True))
        asks = {each.ask for each in request.asks}
        self._lacks = [(ask.devices, [_lack(ask, card, use) for card, use in both]) for ask in asks]
        apart = [
            each.ask for each in request.asks if not each.init and 2 * each.ask.share_milli > WHOLE_MILLI
        ]
        if len(apart) > 1:
            devices = sum(ask.devices for ask in apart)
            self._lacks.append((devices, [_least_lack(apart, card, use) for card, use in both]))
        self._together = _lack_together(request, cards, on_cards)
        self._width = max((sum(place < len(cards) for place, _ in uses) for uses, _ in self._held), default=1)
        self._width = self._width or 1
        self._most: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        self._counts: dict[object, int] = {}
        self.none: Freed = ((0, 0),) * (len(cards) + len(lacks))

    def freed(self, before: Freed, place: int, count: int) -> Freed:
        """What is given back by card after ``count`` more pods of the class at ``place`` have left."""
        after = list(before)
        for card, use in self._held[place][0]:
            share, memory = after[card]
            after[card] = share + count * use.share_milli, memory + count * use.memory_mib
        return tuple(after)

    def at_least(self, freed: Freed, place: int) -> int:
        """How many pods of the classes from ``place`` on must leave in addition; `NEVER` if all of them are
        not enough."""
        beside = ((at, (amount, 0)) for at, amount in enumerate(self._host, self._cards))
        wanted = max((self._count(at, place, lack, freed[at]) for at, lack in beside), default=0)
        if self._by_plugin:
            return wanted  # only the device plugin knows which cards a pod gives back
        for devices, lacks in self._lacks:
            counts = sorted(self._count(card, place, lack, freed[card]) for card, lack in enumerate(lacks))
            if len(counts) < devices or counts[devices - 1] == NEVER:
                return NEVER
            wanted = max(wanted, -(-sum(counts[:devices]) // self._width))
        on_cards = freed[: self._cards]
        total = sum(share for share, _ in on_cards), sum(memory for _, memory in on_cards)
        return max(wanted, self._count(-1, place, self._together, total))

    def _count(self, card: int, place: int, lack: tuple[int, int], freed: tuple[int, int]) -> int:
        share, memory = lack[0] - freed[0], lack[1] - freed[1]
        if share <= 0 and memory <= 0:
            return 0
        key = card, place, share, memory
        if key not in self._counts:
            shares, memories = self._greatest(card, place)
            self._counts[key] = max(_first(shares, share), _first(memories, memory))
        return self._counts[key]

    def _greatest(self, card: int, place: int) -> tuple[list[int], list[int]]:
        """Sums of the largest one, two, ... holdings on the card, for the classes from ``place`` on; card -1:
        on all cards together."""
        key = card, place
        if key not in self._most:
            shares: list[int] = []
            memories: list[int] = []
            for uses, count in self._held[place:]:
                on = [use for at, use in uses if card == at or (card == -1 and at < self._cards)]
                shares += [sum(use.share_milli for use in on)] * count
                memories += [sum(use.memory_mib for use in on)] * count
            self._most[key] = _sums(shares), _sums(memories)
        return self._most[key]


def _sums(amounts: Iterable[int]) -> list[int]:
    return list(accumulate(sorted((amount for amount in amounts if amount), reverse=True)))


def _first(sums: list[int], wanted: int) -> int:
    """How many of them add up to ``wanted``."""
    if wanted <= 0:
        return 0
    place = bisect_left(sums, wanted)
    return place + 1 if place < len(sums) else NEVER


def _lack(ask: Ask, card: Card, used: CardAmount) -> tuple[int, int]:
    """What must be given back of the card so that the ask fits: compute and memory, 0 or less where enough is
    free. A whole-card request needs the whole card back."""
    wanted = need(ask, card)
    memory = card.memory_mib if ask.whole else wanted.memory_mib
    if memory > card.memory_mib:
        return 0, NEVER * card.memory_mib
    return used.share_milli + wanted.share_milli - WHOLE_MILLI, used.memory_mib + memory - card.memory_mib


def _least_lack(asks: Sequence[Ask], card: Card, used: CardAmount) -> tuple[int, int]:
    """What must be given back of the card whichever of the asks gets it."""
    lacks = [_lack(ask, card, used) for ask in asks]
    return min(share for share, _ in lacks), min(memory for _, memory in lacks)


def _lack_together(request: GPURequest, cards: Sequence[Card], uses: Sequence[CardAmount]) -> tuple[int, int]:
    """What must be given back of all cards so that the containers that run together fit in sum."""
    asks = [each.ask for each in request.asks if not each.init]
    smallest = min(cards, key=lambda card: card.memory_mib, default=None)
    if smallest is None:
        return 0, 0
    share = sum(ask.devices * ask.share_milli for ask in asks)
    memory = sum(ask.devices * need(ask, smallest).memory_mib for ask in asks)
    both = list(zip(cards, uses, strict=True))
    return (
        share - sum(max(0, WHOLE_MILLI - use.share_milli) for _, use in both),
        memory - sum(max(0, card.memory_mib - use.memory_mib) for card, use in both),
    )
