"""What simulated pods cost, and the history with a budget that is only supposed; protected
pods in simulations: what the floor has room for, and what each simulated pod takes of it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timekeeper.accounts.budget_history import BudgetEntry, EntryValue, History, history_of, settled_value
from timekeeper.accounts.protection import ProtectedPods
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.protected import Published
from timekeeper.core.request.card_amounts import CardAmount, NamedAmount
from timekeeper.core.request.cards import rate, weight_of
from timekeeper.core.request.host import DOMINANT_HOST, HostShare, host_rate
from timekeeper.core.values import WHOLE_MILLI, Card

_OTHER = "what the supposed protect would select is not known: no simulated pod counts as protected"


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


def supposed(entries: Sequence[BudgetEntry], namespace: str, text: str, at_ms: int) -> History | EntryError:
    """The history if the namespace's entry had been changed to this text a moment ago; what is wrong with
    the text, if it is no entry."""
    value = read_entry(namespace, text)  # not remembered: a user may suppose any number of texts
    if isinstance(value, EntryError):
        return value

    def read(key: str, its: str) -> EntryValue:
        return value if (key, its) == (namespace, text) else settled_value(key, its)

    return history_of((*entries, BudgetEntry(namespace, text, at_ms)), read)


@dataclass(frozen=True, slots=True)
class SupposedProtection:
    """``note``: what is not known, "" if nothing."""

    pods: Mapping[str, ProtectedPods] = field(default_factory=dict)
    note: str = ""


def supposed_protection(history: History, namespace: str, published: Published | None) -> SupposedProtection:
    """``published``: the namespace's `protect` as the present table of standings has it."""
    protection = history.protections.get(namespace)
    if protection is None:
        return SupposedProtection()
    if published is None or published.protection != protection:
        return SupposedProtection(note=_OTHER)
    return SupposedProtection({namespace: ProtectedPods(protection, published.uids, left=published.left)})


def protecting(
    standings: Mapping[str, Any], namespace: str, uid: str, review: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The standings after this review: a protected pod takes its part of the floor, and is named."""
    takes = review.get("protected")
    if not takes:
        return standings
    entry = standings["namespaces"][namespace]
    protect = entry["protect"]
    now = {**protect, "left": protect["left"] - takes, "uids": [*protect["uids"], uid]}
    names = {**standings["namespaces"], namespace: {**entry, "protect": now}}
    return {**standings, "namespaces": names}
