"""What simulated pods cost. Pure."""

from dataclasses import dataclass

from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.request.card_amounts import CardAmount, NamedAmount
from timekeeper.core.request.cards import rate, weight_of
from timekeeper.core.request.host import DOMINANT_HOST, HostShare, host_rate
from timekeeper.core.values import WHOLE_MILLI, Card


@dataclass(frozen=True, slots=True)
class SimulatedUse:
    """What a pod would take of a card."""

    card: Card
    amount: CardAmount | NamedAmount


@dataclass(frozen=True, slots=True)
class SimulatedPlacement:
    """What a pod would take; ``unnamed``: whole cards of this ``model`` that only a device plugin names."""

    uses: tuple[SimulatedUse, ...]
    unnamed: int = 0
    model: str = ""
    host: HostShare | None = None  # what it would request of the node's CPU and memory


def rate_of(placement: SimulatedPlacement, settings: BudgetSettings) -> int:
    """The rate that a session there would have now, in thousandths of a weighted GPU."""
    named = rate(
        {each.card.uuid: each.amount for each in placement.uses},
        [each.card for each in placement.uses],
        settings.weights,
        settings.charge_by,
        settings.unit_costs,
    )
    unnamed = placement.unnamed * WHOLE_MILLI * weight_of(placement.model, settings.weights) // 1000
    if settings.charge_by != DOMINANT_HOST or placement.host is None:
        return named + unnamed
    return max(named + unnamed, host_rate(placement.host, settings.weights))
