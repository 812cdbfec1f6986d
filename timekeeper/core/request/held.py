"""What a pod holds of cards, in milli-GPU: its rate at weight 1, for each card the larger of its share of
compute and of memory (of named resources, the largest part). Caps count it."""

from collections.abc import Iterable, Mapping

from timekeeper.core.request.cards import CardAmount, has_named, need, rate
from timekeeper.core.request.estimates import estimated_rate
from timekeeper.core.values import WHOLE_MILLI, Card, ContainerAsk, GPURequest

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
    """A lower bound of what the pod will hold on some of these cards; without cards, on any. Where the
    request names an amount of memory, that is a smaller part of a larger card."""
    there = tuple(cards)
    together = [each for each in request.asks if not each.init]
    return max(_least(each, there) for each in (together, *([each] for each in request.asks if each.init)))


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


def _least(asks: list[ContainerAsk], cards: tuple[Card, ...]) -> int:
    """Of containers that run together: parts of a card add up in each respect, so the larger sum is a bound
    wherever they run."""
    largest_mib = max((card.memory_mib for card in cards), default=0)
    shares = memory = mib = named = 0
    for each in asks:
        ask = each.ask
        shares += ask.devices * ask.share_milli
        memory += 0 if ask.memory_mib else ask.devices * (ask.memory_milli or ask.share_milli)
        mib += ask.devices * ask.memory_mib
        if ask.resources:
            named = max(named, ask.devices * _least_named(each, cards))
    if mib:
        memory += -(-1000 * mib // largest_mib) if largest_mib else 1
    return max(shares, memory, named)


def _least_named(each: ContainerAsk, cards: tuple[Card, ...]) -> int:
    parts = (
        rate({card.uuid: need(each.ask, card)}, [card], (), _CHARGE_BY)
        for card in cards
        if has_named(each.ask, card)
    )
    return min(parts, default=1)
