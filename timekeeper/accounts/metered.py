"""What a pod is charged to which Bursar gave no cards: by its request, on the cards of its node as they are
known."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects.mig import card_model
from timekeeper.core.dialects.nvidia import DIALECT as NVIDIA
from timekeeper.core.dialects.percent import UNKNOWN_MEMORY_MIB
from timekeeper.core.json_values import Json
from timekeeper.core.request.cards import CardAmount, allowed, has_named, instance_doubt, is_model
from timekeeper.core.request.estimates import estimated_rate, requested_amount, without_constraints
from timekeeper.core.request.inventory import node_facts
from timekeeper.core.request.metered import of_devices
from timekeeper.core.request.node_parts import card_parts, contradiction, device_parts, part_doubts
from timekeeper.core.values import WHOLE_MILLI, Ask, Card, ContainerAsk, GPURequest

_AMD_GPU = "amd.com/gpu"


@dataclass(frozen=True, slots=True)
class CardParts:
    """What a node says of the devices that plugins count. ``part_milli``: which part of a card one of
    NVIDIA's is, in thousandths; ``devices``: by resource, how many of it a device of another vendor has;
    ``doubt``: why its cards may be others than those known; ``doubts``: by resource, what of its part is an
    assumption."""

    part_milli: int = WHOLE_MILLI
    doubt: str = ""
    devices: Mapping[str, int] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)


WHOLE_CARDS = CardParts()


def parts_of_node(raw: Json, cards: Sequence[Card]) -> CardParts:
    """What the Node object says. ``cards``: as they are described."""
    facts = node_facts(raw)
    return CardParts(card_parts(facts), contradiction(facts, cards), device_parts(facts), part_doubts(facts))


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
    cards = list(described)
    named = {ask.ask.device: ask.ask.device for ask in pod.request.asks} | settings.device_models
    request = of_devices(without_constraints(pod.request), named) or pod.request
    request = _in_parts(request, parts, settings)
    rate = estimated_rate(request, cards, settings.weights, settings.charge_by, settings.unit_costs)
    kinds = [_kinds(request, each, cards) for each in request.asks if not each.ask.device]
    unsure = next(filter(None, (_unsure(each) for each in kinds)), "")
    doubt = pod.doubt or unsure or (parts.doubt if kinds else "")
    devices = {each.ask.device for each in request.asks if each.ask.device}
    models = devices | ({model for each in kinds for model, *_ in each} if not unsure else set())
    doubt = doubt or unknown_memory(request, cards) or assumed_part(request, models, parts, settings)
    text = ",".join(sorted(map(card_model, models)))
    return MeteredCharge(rate, text, requested_amount(request, cards), doubt)


def assumed_part(
    request: GPURequest, models: Iterable[str], parts: CardParts, settings: BudgetSettings
) -> str:
    """What of the request's parts of cards of these models is an assumption that no setting replaces; "":
    nothing."""
    costs = dict(settings.unit_costs)
    asks = [container.ask for container in request.asks]
    named = {name for ask in asks for name, _ in ask.resources if name not in costs}
    named |= {_resource(ask, settings) for ask in asks if not _is_stated(ask, settings)}
    doubts = (parts.doubts.get(name, "") for name in sorted(named))
    return next(filter(None, (*doubts, *(instance_doubt(model, settings.weights) for model in models))), "")


def unknown_memory(request: GPURequest, cards: Iterable[Card]) -> str:
    """Why an amount of memory is no known part of these cards; "": it is, or the request names none."""
    if not any(container.ask.memory_mib for container in request.asks):
        return ""
    is_known = all(card.resources or card.memory_mib != UNKNOWN_MEMORY_MIB for card in cards)
    sentence = "nothing says how much memory its node's cards have: each counts with 1000 MiB"
    return "" if is_known else sentence


def _in_parts(request: GPURequest, parts: CardParts, settings: BudgetSettings) -> GPURequest:
    """What plugins count, as the parts of cards and devices that they are."""
    is_nvidias = request.dialect == NVIDIA.name and parts.part_milli != WHOLE_MILLI
    if not (is_nvidias or parts.devices):
        return request

    def part(container: ContainerAsk) -> ContainerAsk:
        ask, milli = container.ask, parts.part_milli if is_nvidias else WHOLE_MILLI
        if ask.device:
            number = parts.devices.get(_resource(ask, settings), 1)
            milli = WHOLE_MILLI if _is_stated(ask, settings) else -(-WHOLE_MILLI // number)
        return replace(container, ask=replace(ask, share_milli=milli)) if ask.whole else container

    return replace(request, asks=tuple(map(part, request.asks)))


def _resource(ask: Ask, settings: BudgetSettings) -> str:
    """The resource of the devices, which `_settings` may name otherwise."""
    return next((resource for resource, model in settings.devices if model == ask.device), ask.device)


def _is_stated(ask: Ask, settings: BudgetSettings) -> bool:
    """Whether a weight says what such a part of a device costs."""
    is_named = _resource(ask, settings) != _AMD_GPU
    return is_named and any(is_model(name, ask.device) for name, _ in settings.weights)


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
