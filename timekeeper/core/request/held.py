"""What a pod holds of cards, in milli-GPU: its rate at weight 1, for each card the larger of its share of
compute and of memory (of named resources, the largest part). Caps count it."""

from collections.abc import Iterable, Mapping

from timekeeper.core.moments import at_once, most_at_once
from timekeeper.core.request.cards import NO_AMOUNT, CardAmount, has_named, need, rate
from timekeeper.core.request.estimates import estimated_rate
from timekeeper.core.values import WHOLE_MILLI, Ask, Card, ContainerAsk, GPURequest

_CHARGE_BY = "dominant"


def held_milli(
    request: GPURequest | None, uses: Mapping[str, CardAmount], unnamed: int, cards: Iterable[Card]
) -> int:
    """What a placed pod holds of its node's cards. ``uses``: what it takes of each, by UUID; ``unnamed``:
    whole cards that only the device plugin could name. Where neither is known, the most that the request can
    take of these cards; 0 where the request is not known either."""
    there = tuple(cards)
    if uses or unnamed:
        return rate(uses, there, (), _CHARGE_BY) + WHOLE_MILLI * unnamed
    return 0 if request is None else estimated_rate(request, there, (), _CHARGE_BY)


def least_milli(request: GPURequest, cards: Iterable[Card] = ()) -> int:
    """A lower bound of what the pod will hold on some of these cards; without cards, on any. Parts of a card
    add up in each respect, so the larger sum is a bound wherever the containers run. An amount of memory is a
    smaller part of a larger card."""
    there = tuple(cards)
    largest_mib = max((card.memory_mib for card in there), default=0)
    shares = most_at_once(request.asks, lambda each: each.ask.devices * each.ask.share_milli)
    named = (each.ask.devices * _least_named(each, there) for each in request.asks if each.ask.resources)
    # a moment's parts of memory, and then its amounts
    memory = at_once(((each.init, _memory(each.ask)) for each in request.asks), NO_AMOUNT)
    parts = (use.share_milli + _least_part(use.memory_mib, largest_mib) for use in memory)
    return max(shares, *named, *parts)


def most_milli(request: GPURequest) -> int:
    """An upper bound of what the pod will hold, on any cards: all of each."""
    return sum(each.ask.devices for each in request.asks) * WHOLE_MILLI


def depends_on_card(request: GPURequest) -> bool:
    """True if the request names amounts that are another part of another card."""
    return any(each.ask.memory_mib or each.ask.resources for each in request.asks)


def cards_text(milli: int) -> str:
    """A number of cards, as a budget's entry writes it."""
    whole, part = divmod(milli, WHOLE_MILLI)
    return f"{whole}.{part:03}".rstrip("0").rstrip(".")


def _memory(ask: Ask) -> CardAmount:
    """The memory that it requests as parts of cards, or as an amount."""
    part_milli = 0 if ask.memory_mib else ask.memory_milli or ask.share_milli
    return CardAmount(ask.devices * part_milli, ask.devices * ask.memory_mib)


def _least_part(memory_mib: int, largest_mib: int) -> int:
    """Of the largest card, in thousandths; of any card, where none is known."""
    return -(-1000 * memory_mib // largest_mib) if largest_mib else min(1, memory_mib)


def _least_named(each: ContainerAsk, cards: tuple[Card, ...]) -> int:
    parts = (
        rate({card.uuid: need(each.ask, card)}, [card], (), _CHARGE_BY)
        for card in cards
        if has_named(each.ask, card)
    )
    return min(parts, default=1)
