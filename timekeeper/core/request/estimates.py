"""What a request costs before, or without, a placement: an estimate from the cards that it allows."""

from collections.abc import Iterable
from dataclasses import replace

from timekeeper.core.request.cards import (
    NO_AMOUNT,
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
    count whole, with the weight of their resource's name, whatever cards there are."""
    choices = tuple(card for card in cards if allowed(request, card))

    def estimate(each: ContainerAsk) -> int:
        if each.ask.device:
            return each.ask.devices * weight_of(each.ask.device, weights)
        uses = ((card, need(each.ask, card)) for card in choices if has_named(each.ask, card))
        rates = (rate({card.uuid: use}, [card], weights, charge_by, unit_costs) for card, use in uses)
        share = 0 if each.ask.memory_mib else max(each.ask.share_milli, each.ask.memory_milli)
        return each.ask.devices * max(rates, default=share or WHOLE_MILLI)

    together = sum(estimate(each) for each in request.asks if not each.init)
    return max((together, *(estimate(each) for each in request.asks if each.init)))


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
    init = [_requested(each, choices) for each in request.asks if each.init]
    together = [_requested(each, choices) for each in request.asks if not each.init]
    most = (*init, sum(together, start=NO_AMOUNT))
    return CardAmount(max(use.share_milli for use in most), max(use.memory_mib for use in most))


def _requested(each: ContainerAsk, choices: tuple[Card, ...]) -> CardAmount:
    ask = each.ask
    parts = (share_of(need(ask, card), card) for card in choices if has_named(ask, card))
    share_milli = ask.share_milli or max(parts, default=0)
    return CardAmount(share_milli * ask.devices, ask.memory_mib * ask.devices)
