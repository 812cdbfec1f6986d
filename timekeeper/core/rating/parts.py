"""Which part of a card an amount is, in thousandths, unweighted and as the cluster charges it."""

from dataclasses import dataclass

from timekeeper.core.request.card_amounts import CardAmount
from timekeeper.core.values import Ask, Card

UnitCosts = tuple[tuple[str, int], ...]  # (named resource, `COSTS_PER_GPU` parts of a GPU for one unit)

COSTS_PER_GPU = 10**12
_MAX_MILLI = 1_000_000  # of one card, whatever a unit costs, so that amounts of charge stay within 64 bits


@dataclass(slots=True)
class Holding:
    """What a container asks for, or what a pod or a claim has, of each of ``ask.devices`` cards at one time.
    ``amount``: of each, where that is known whatever the card; ``cards``: one of each kind that they may be;
    ``amounts``: what it is of each kind."""

    ask: Ask
    is_init: bool = False
    amount: CardAmount | None = None
    cards: tuple[Card, ...] = ()
    amounts: tuple[CardAmount, ...] = ()

    @property
    def share_milli(self) -> int:
        """Of one card, unweighted."""
        return self.ask.share_milli or max(map(share_of, self.amounts, self.cards), default=0)


def share_of(amount: CardAmount, card: Card) -> int:
    """The share of the card that the amount is, unweighted; of memory alone, its share of the memory; of
    named resources, the largest part."""
    if amount.resources:
        return _named_part(amount, card, ())
    return amount.share_milli or _memory_milli(amount, card)


def charged_part(amount: CardAmount, card: Card, charge_by: str, unit_costs: UnitCosts) -> int:
    """``charge_by`` selects the part of a card: ``compute``, ``memory``, their ``mean`` rounded up, or the
    ``dominant`` one, Of a card of which the pod takes memory alone, ``compute``
    is that part too. Of a card with named resources it is the largest cost of one of them; without an entry
    in ``unit_costs`` a resource costs its part of the card."""
    if amount.resources:
        return _named_part(amount, card, unit_costs)
    compute, memory = amount.share_milli, _memory_milli(amount, card)
    if charge_by == "compute":
        part = compute or memory
    elif charge_by == "memory":
        part = memory
    elif charge_by == "mean":
        part = -(-(compute + memory) // 2)
    else:
        part = max(compute, memory)
    return min(part, _MAX_MILLI)


def _memory_milli(amount: CardAmount, card: Card) -> int:
    return -(-1000 * amount.memory_mib // card.memory_mib)


def _named_part(amount: CardAmount, card: Card, unit_costs: UnitCosts) -> int:
    """The largest cost of one of the resources, in thousandths of a GPU."""
    costs, whole = dict(unit_costs), dict(card.resources)
    parts = (
        -(-1000 * units * costs[name] // COSTS_PER_GPU)
        if name in costs
        else -(-1000 * units // max(1, whole.get(name, 0)))
        for name, units in amount.resources
    )
    return min(max(parts), _MAX_MILLI)
