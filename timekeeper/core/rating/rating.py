"""What a pod, reserved cards, or a device of a claim cost: one chain of steps.

Each step adds to the draft what it finds, from what those before it have found. A rate is in milli-GPU: in
thousandths of a GPU of weight 1.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects.mig import card_model
from timekeeper.core.dialects.moments import sum_of_peaks
from timekeeper.core.dialects.nvidia import DIALECT as NVIDIA
from timekeeper.core.dialects.percent import UNKNOWN_MEMORY_MIB
from timekeeper.core.rating.devices import RatedDevice, holding_of
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.parts import Holding, charged_part
from timekeeper.core.rating.weights import instance_doubt, weight_of
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount
from timekeeper.core.request.cards import allowed, has_named, is_model, need
from timekeeper.core.request.metered import of_devices
from timekeeper.core.values import WHOLE_MILLI, Ask, Card, GPURequest

_NOTHING = GPURequest(dialect="", asks=())
_AMD_GPU = "amd.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked for, or held. ``request``: of a pod; ``uses``: what it has of each card by its placement,
    by UUID, None: of cards that the request allows; ``device``: of a claim; ``doubt``: what of all that is an
    assumption; "": nothing."""

    request: GPURequest = _NOTHING
    uses: Mapping[str, CardAmount] | None = None
    device: RatedDevice | None = None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Rating:
    """``rate_milli``: the highest that is possible there; ``models``: of what is held, as far as that is
    certain; ``requested``: of cards together at one time, unweighted, as far as amounts are named; ``doubt``:
    why the rate is not certain; "": it is."""

    rate_milli: int
    models: str
    requested: CardAmount
    doubt: str


@dataclass(slots=True, kw_only=True)
class Draft:
    """What the steps have found. ``models``: of the cards, as far as they are certain; ``weights``: of each
    model, in thousandths; the rest: as `Rating` has it."""

    asked: Demand
    node: NodeCards
    terms: BudgetSettings
    request: GPURequest
    holdings: list[Holding] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    weights: Mapping[str, int] = field(default_factory=dict)
    requested: CardAmount = NO_AMOUNT
    rate_milli: int = 0
    doubt: str = ""


def at_each_moment(draft: Draft) -> None:
    """What each container asks for, devices by the models that the settings give them; by a placement, the
    most that containers which run together have of each card; of a claim, its device."""
    asked, terms = draft.asked, draft.terms
    draft.doubt = asked.doubt
    if asked.device is not None:
        holding, draft.doubt = holding_of(asked.device, draft.node.published, terms.weights)
        draft.holdings = [holding]
    elif asked.uses is not None:
        draft.holdings = [
            Holding(Ask(1, use.share_milli, use.memory_mib, use.resources), amount=use)
            for use in asked.uses.values()
        ]
    else:
        devices = {container.ask.device for container in asked.request.asks if container.ask.device}
        if devices:
            models = {device: device for device in devices} | terms.device_models
            draft.request = of_devices(asked.request, models) or asked.request
        draft.holdings = [Holding(container.ask, container.init) for container in draft.request.asks]


def on_cards(draft: Draft) -> None:
    """Those of the placement; else one of each kind that the request allows. A device that no dialect reads
    is a card of its own."""
    if draft.asked.uses is not None:
        by_uuid = {card.uuid: card for card in draft.node.cards}
        for holding, uuid in zip(draft.holdings, draft.asked.uses, strict=True):
            holding.cards = (by_uuid[uuid],)
    for holding in draft.holdings:
        holding.cards = holding.cards or _kinds(holding.ask, draft)
        draft.models.update(card.model for card in holding.cards)


def in_parts(draft: Draft) -> None:
    """An amount of each card; of a whole card or device that a plugin counts, the part of one that this is.
    Memory alone is its share of a card's, of several kinds the largest."""
    for holding in draft.holdings:
        _divide(holding, draft)
    share_milli = _at_once(draft, lambda holding: holding.share_milli)
    draft.requested = CardAmount(share_milli, _at_once(draft, lambda holding: holding.ask.memory_mib))


def by_weight(draft: Draft) -> None:
    """What a card of each model weighs."""
    draft.weights = {model: weight_of(model, draft.terms.weights) for model in draft.models}


def as_charged(draft: Draft) -> None:
    """By compute, memory, their mean or the larger one, and by the costs of units. Of the cards that it may
    be on the highest rate counts."""
    draft.rate_milli = _at_once(draft, lambda holding: _rate(holding, draft))


def with_assumptions(draft: Draft) -> None:
    """The first thing that is assumed: of the request, of the cards, of what they have, of parts of them."""
    if draft.asked.device is not None:
        return
    of_cards = [holding for holding in draft.holdings if not holding.ask.device]
    if draft.asked.uses is None and of_cards:
        unsure = next(filter(None, map(_unsure, of_cards)), "")
        if unsure:
            draft.models = {holding.ask.device for holding in draft.holdings if holding.ask.device}
        draft.doubt = draft.doubt or unsure or draft.node.doubt or _unknown_memory(draft)
    draft.doubt = draft.doubt or _assumed_part(draft)


STEPS = (
    at_each_moment,  # what is asked for at each moment
    on_cards,  # which cards it may be on
    in_parts,  # which part of a card each is
    by_weight,  # what these weigh
    as_charged,  # how the cluster charges
    with_assumptions,  # what of all that is assumed
)


def rated(asked: Demand, node: NodeCards, terms: BudgetSettings) -> Rating:
    """What it costs on this node, by the settings of ``terms``."""
    draft = Draft(asked=asked, node=node, terms=terms, request=asked.request)
    for step in STEPS:
        step(draft)
    models = draft.models if asked.uses is not None else set(map(card_model, draft.models))
    return Rating(draft.rate_milli, ",".join(sorted(models)), draft.requested, draft.doubt)


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


def _at_once(draft: Draft, amount: Callable[[Holding], int]) -> int:
    """The most at one time of what each holding has of one card."""
    if draft.asked.uses is not None:
        return sum(map(amount, draft.holdings))
    return sum_of_peaks(
        (holding.ask.device, holding.is_init, holding.ask.devices * amount(holding))
        for holding in draft.holdings
    )


def _kinds(ask: Ask, draft: Draft) -> tuple[Card, ...]:
    """Of all cards that concern a rate."""
    if ask.device:
        return (Card(ask.device, 0, ask.device, WHOLE_MILLI),)
    cards = (card for card in draft.node.cards if allowed(draft.request, card) and has_named(ask, card))
    return tuple({(card.model, card.memory_mib, card.resources): card for card in cards}.values())


def _unsure(holding: Holding) -> str:
    if not holding.cards:
        return "nothing describes its node's cards: each card counts with weight 1, memory as whole cards"
    models = sorted({card.model for card in holding.cards})
    if len(models) > 1:
        several = f"its node has cards of several models: {', '.join(models)}"
        return f"{several}: that of the highest weight that it may have counts"
    if len(holding.cards) > 1:
        return f"its node's cards ({models[0]}) differ: that of the highest weight that it may have counts"
    return ""


def _divide(holding: Holding, draft: Draft) -> None:
    part_milli = _part_milli(holding.ask, draft) if holding.ask.share_milli >= WHOLE_MILLI else WHOLE_MILLI
    if part_milli != WHOLE_MILLI:
        share_milli = -(-holding.ask.share_milli * part_milli // WHOLE_MILLI)
        holding.ask, part = replace(holding.ask, share_milli=share_milli), Ask(1, share_milli, 0)
        holding.amounts = tuple(need(part, card) for card in holding.cards)
    elif holding.amount is not None:
        holding.amounts = (holding.amount,)
    else:
        holding.amounts = tuple(need(holding.ask, card) for card in holding.cards)


def _part_milli(ask: Ask, draft: Draft) -> int:
    """Which part of a card or of a device one is that its node's plugin counts."""
    if ask.device:
        number = 1 if _is_stated(ask, draft.terms) else draft.node.devices.get(_resource(ask, draft.terms), 1)
        return -(-WHOLE_MILLI // number)
    return draft.node.part_milli if draft.request.dialect == NVIDIA.name else WHOLE_MILLI


def _resource(ask: Ask, terms: BudgetSettings) -> str:
    """The resource of the devices, which `_settings` may name otherwise."""
    return next((resource for resource, model in terms.devices if model == ask.device), ask.device)


def _is_stated(ask: Ask, terms: BudgetSettings) -> bool:
    """Whether a weight says what such a part of a device costs."""
    is_named = _resource(ask, terms) != _AMD_GPU
    return is_named and any(is_model(name, ask.device) for name, _ in terms.weights)


def _rate(holding: Holding, draft: Draft) -> int:
    """Of one of its cards. Where no card is known, a share counts at weight 1, memory as a whole card."""
    terms, ask = draft.terms, holding.ask
    rates = (
        -(-charged_part(amount, card, terms.charge_by, terms.unit_costs) * draft.weights[card.model] // 1000)
        for amount, card in zip(holding.amounts, holding.cards, strict=True)
    )
    share_milli = 0 if ask.memory_mib else max(ask.share_milli, ask.memory_milli)
    return max(rates, default=share_milli or WHOLE_MILLI)


def _unknown_memory(draft: Draft) -> str:
    """Why an amount of memory is no known part of these cards; "": it is, or none is asked for."""
    if not any(holding.ask.memory_mib for holding in draft.holdings):
        return ""
    is_known = all(card.resources or card.memory_mib != UNKNOWN_MEMORY_MIB for card in draft.node.cards)
    sentence = "nothing says how much memory its node's cards have: each counts with 1000 MiB"
    return "" if is_known else sentence


def _assumed_part(draft: Draft) -> str:
    """What of the parts of cards is an assumption that no setting replaces; "": nothing."""
    terms, doubts = draft.terms, draft.node.doubts
    asks = [container.ask for container in draft.request.asks] if doubts else []
    named = sorted({name for ask in asks for name in _assumed_names(ask, terms) if name in doubts})
    if named:
        return doubts[named[0]]
    return next(filter(None, (instance_doubt(model, terms.weights) for model in sorted(draft.models))), "")


def _assumed_names(ask: Ask, terms: BudgetSettings) -> Iterator[str]:
    """Of the resources by which it is asked for, those for which no setting says what they cost."""
    costs = dict(terms.unit_costs)
    yield from (name for name, _ in ask.resources if name not in costs)
    if not _is_stated(ask, terms):
        yield _resource(ask, terms)
