"""What a pod holds of cards, in milli-GPU: its rate at weight 1, for each card the larger of its share of
compute and of memory (of named resources, the largest part). A MIG instance is one. Caps count it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects.mig import card_model, instance_of
from timekeeper.core.dialects.moments import at_once, most_at_once
from timekeeper.core.dialects.nvidia_parts import instance_profile
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.parts import COSTS_PER_GPU
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.rating.weights import weight_of
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount
from timekeeper.core.request.cards import has_named, need
from timekeeper.core.request.host import CardHost, HostAmount
from timekeeper.core.values import WHOLE_MILLI, Amounts, Ask, Card, ContainerAsk, GPURequest

UNWEIGHTED = BudgetSettings()


def held_milli(
    request: GPURequest | None, uses: Mapping[str, CardAmount], unnamed: int, cards: Iterable[Card]
) -> int:
    """What a placed pod holds of its node's cards. ``uses``: what it takes of each, by UUID; ``unnamed``:
    whole cards that only the device plugin could name. Where neither is known, the most that the request can
    take of these cards; 0 where the request is not known either."""
    if uses or unnamed:
        held = [
            _used_milli(uses[card.uuid], card.model, card.memory_mib, card.resources)
            for card in cards
            if card.uuid in uses
        ]
        return sum(held) + WHOLE_MILLI * unnamed
    if request is None:
        return 0
    names = frozenset(name for container in request.asks for name, _ in container.ask.resources)
    return _rate_milli(Demand(request=request), map(_undivided, cards), names)


@lru_cache(maxsize=4096)  # most pods are made from few templates, and a cluster has few models
def _used_milli(use: CardAmount, model: str, memory_mib: int, resources: Amounts) -> int:
    """Of one card, by all of it that concerns a rate."""
    card = _undivided(Card("", 0, model, memory_mib, resources=resources))
    return _rate_milli(Demand(uses={"": use}), (card,), frozenset(name for name, _ in use.resources))


def _rate_milli(asked: Demand, cards: Iterable[Card], names: frozenset[str]) -> int:
    terms = _by_instances(names) if names else UNWEIGHTED
    return rated(asked, NodeCards(tuple(cards)), terms).rate_milli


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
    return sum(each.ask.devices * max(1, _instances(each)) for each in request.asks) * WHOLE_MILLI


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
    if instances := _instances(each):
        return WHOLE_MILLI * instances
    amounts = ((card, need(each.ask, card)) for card in cards if has_named(each.ask, card))
    return min((held_milli(None, {card.uuid: amount}, 0, (card,)) for card, amount in amounts), default=1)


def _undivided(card: Card) -> Card:
    """A MIG instance in the inventory counts as a card."""
    return replace(card, model=card_model(card.model)) if instance_of(card.model) else card


@lru_cache(maxsize=256)
def _by_instances(names: frozenset[str]) -> BudgetSettings:
    """By which each MIG instance of a plugin counts as a card."""
    profiles = ((name, instance_profile(name)) for name in sorted(names))
    costs = ((name, COSTS_PER_GPU // profile.slices) for name, profile in profiles if profile)
    return replace(UNWEIGHTED, unit_costs=tuple(costs))


def _instances(each: ContainerAsk) -> int:
    """The MIG instances of a plugin that the container requests."""
    profiles = ((instance_profile(name), amount) for name, amount in each.ask.resources)
    return sum(amount // profile.slices for profile, amount in profiles if profile)


def card_host(nodes: Iterable[tuple[tuple[Card, ...], HostAmount]]) -> CardHost | None:
    """The least CPU and memory for a card, of nodes with these cards. A MIG instance is its part of a card.
    None where no node with cards says what it has."""
    known = [(cards, there) for cards, there in nodes if cards and there.cpu_milli and there.memory_bytes]
    if not known:
        return None
    parts = [(sum(weight_of(card.model, ()) for card in cards), there) for cards, there in known]
    return CardHost(
        min(WHOLE_MILLI * there.cpu_milli // cards_milli for cards_milli, there in parts),
        min(WHOLE_MILLI * there.memory_bytes // cards_milli for cards_milli, there in parts),
        min(card.memory_mib for cards, _ in known for card in cards),
    )
