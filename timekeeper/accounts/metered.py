"""What a pod is charged to which Bursar gave no cards: by its request, on the cards of its node as they are
known."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects.nvidia import DIALECT as NVIDIA
from timekeeper.core.request.cards import CardAmount, allowed, has_named
from timekeeper.core.request.estimates import estimated_rate, requested_amount, without_constraints
from timekeeper.core.request.node_parts import card_model
from timekeeper.core.values import WHOLE_MILLI, Card, ContainerAsk, GPURequest


@dataclass(frozen=True, slots=True)
class CardParts:
    """What a node says of the devices that its NVIDIA plugin counts. ``part_milli``: which part of a card one
    of them is, in thousandths; ``doubt``: why its cards may be others than those known; "": no reason."""

    part_milli: int = WHOLE_MILLI
    doubt: str = ""


WHOLE_CARDS = CardParts()


@dataclass(frozen=True, slots=True)
class MeteredCharge:
    """``rate_milli``: the highest that the pod can have there; ``models``: of what it holds, as far as that
    is certain; ``doubt``: why the rate is not certain; "": it is."""

    rate_milli: int
    models: str
    requested: CardAmount
    doubt: str


def metered_charge(
    pod: LedgerPod, described: Sequence[Card], parts: CardParts, settings: BudgetSettings
) -> MeteredCharge:
    """The charge of a pod that `is_charged_by_spec`, on a node whose cards are described so."""
    cards = [replace(each, model=card_model(each.model)) for each in described]
    request = _in_parts(without_constraints(pod.request), parts.part_milli)
    rate = estimated_rate(request, cards, settings.weights, settings.charge_by, settings.unit_costs)
    kinds = [_kinds(request, each, cards) for each in request.asks if not each.ask.device]
    unsure = next(filter(None, (_unsure(each) for each in kinds)), "")
    doubt = pod.doubt or unsure or (parts.doubt if kinds else "")
    devices = {each.ask.device for each in request.asks if each.ask.device}
    models = devices | ({model for each in kinds for model, *_ in each} if not unsure else set())
    return MeteredCharge(rate, ",".join(sorted(models)), requested_amount(request, cards), doubt)


def _in_parts(request: GPURequest, part_milli: int) -> GPURequest:
    """What NVIDIA's plugin counts, as the parts of cards that they are."""
    if part_milli == WHOLE_MILLI or request.dialect != NVIDIA.name:
        return request
    return replace(request, asks=tuple(_part(each, part_milli) for each in request.asks))


def _part(each: ContainerAsk, part_milli: int) -> ContainerAsk:
    if each.ask.device or not each.ask.whole:
        return each
    return replace(each, ask=replace(each.ask, share_milli=part_milli))


_Kind = tuple[str, int, tuple[tuple[str, int], ...]]


def _kinds(request: GPURequest, each: ContainerAsk, cards: Iterable[Card]) -> frozenset[_Kind]:
    """The kinds of cards of which the container may have some: all that concerns a rate."""

    def of(found: Iterable[Card]) -> Iterator[_Kind]:
        for card in found:
            if allowed(request, card) and has_named(each.ask, card):
                yield card.model, card.memory_mib, card.resources

    return frozenset(of(cards))


def _unsure(kinds: frozenset[_Kind]) -> str:
    if not kinds:
        return "nothing describes its node's cards: each card counts with weight 1, memory as whole cards"
    models = sorted({model for model, *_ in kinds})
    if len(models) > 1:
        return (
            f"its node has cards of several models: {', '.join(models)}: the dearest that it may have count"
        )
    if len(kinds) > 1:
        return f"its node's cards ({models[0]}) differ: the dearest that it may have count"
    return ""
