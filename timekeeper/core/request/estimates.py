"""What a request costs before, or without, a placement: an estimate from the cards that it allows."""

from collections.abc import Iterable
from dataclasses import replace

from timekeeper.core.dialects.moments import most_at_once
from timekeeper.core.request.cards import (
    CardAmount,
    UnitCosts,
    Weights,
    allowed,
    has_named,
    need,
    rate,
    share_of,
    weight_of,
)
from timekeeper.core.values import WHOLE_MILLI, Card, ContainerAsk, GPURequest


def estimated_rate(
    request: GPURequest,
    cards: Iterable[Card],
    weights: Weights,
    charge_by: str,
    unit_costs: UnitCosts = (),
) -> int:
    """The highest rate that the request can have on any of these cards that it allows; without such cards,
    its share at weight 1, and whole cards where it names an amount of memory. Devices that no dialect reads
    count by their share, with the weight of their resource's name, whatever cards there are."""
    choices = tuple(card for card in cards if allowed(request, card))

    def estimate(each: ContainerAsk) -> int:
        if each.ask.device:
            milli = weight_of(each.ask.device, weights) * each.ask.share_milli
            return each.ask.devices * -(-milli // WHOLE_MILLI)
        uses = ((card, need(each.ask, card)) for card in choices if has_named(each.ask, card))
        rates = (rate({card.uuid: use}, [card], weights, charge_by, unit_costs) for card, use in uses)
        share = 0 if each.ask.memory_mib else max(each.ask.share_milli, each.ask.memory_milli)
        return each.ask.devices * max(rates, default=share or WHOLE_MILLI)

    return most_at_once(request.asks, estimate)


def without_constraints(request: GPURequest) -> GPURequest:
    """The request on any cards: of a pod whose scheduler may not have looked at its constraints."""
    return replace(
        request,
        models=(),
        exclude_models=(),
        model_pattern="",
        uuids=(),
        exclude_uuids=(),
        min_memory_mib=0,
    )


def requested_amount(request: GPURequest, cards: Iterable[Card]) -> CardAmount:
    """What the request takes of its cards together at one time, as far as it names amounts. Where a container
    requests memory alone, its share of compute is the largest share of memory that this is on any of these
    cards that the request allows."""
    choices = tuple(card for card in cards if allowed(request, card))

    def share_milli(each: ContainerAsk) -> int:
        parts = (share_of(need(each.ask, card), card) for card in choices if has_named(each.ask, card))
        return each.ask.devices * (each.ask.share_milli or max(parts, default=0))

    memory_mib = most_at_once(request.asks, lambda each: each.ask.devices * each.ask.memory_mib)
    return CardAmount(most_at_once(request.asks, share_milli), memory_mib)
