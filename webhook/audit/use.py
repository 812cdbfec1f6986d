"""What the GPU pods of a cluster hold now and what that would cost: by namespace and dialect."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from timekeeper.core.budgets.policy import UNLIMITED, Budget, BudgetSettings
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.ledger.metering import price_at
from timekeeper.core.object_names import TERMINAL
from timekeeper.core.rating.nodes import NO_CARDS, NodeCards
from timekeeper.core.rating.rating import Demand, rated, without_constraints
from timekeeper.core.request.host import NO_HOST, HostAmount
from timekeeper.core.request.metered import charged_request
from timekeeper.core.request.request import parse_new
from webhook.audit.findings import ENFORCED, Metering, as_written, asks_for_gpus

HOURS_OF_A_MONTH = 730  # a twelfth of 365 days, as cloud providers count
UNREADABLE = "unreadable"  # the dialect of a request that no dialect can read


@dataclass(frozen=True, slots=True)
class AuditedNode:
    """What the rates of a node's pods depend on."""

    cards: NodeCards = NO_CARDS
    allocatable: HostAmount = NO_HOST


_UNKNOWN_NODE = AuditedNode()


@dataclass(frozen=True, slots=True)
class DialectUse:
    """The bound pods of one namespace in one dialect, as if they ran on for a month."""

    namespace: str
    dialect: str
    pods: int
    rate_milli: int  # weighted milli-GPU
    price: str  # of a weighted GPU-hour, decimal text; "": none
    currency: str

    @property
    def gpu_hours(self) -> Decimal:
        """Weighted GPU-hours of a month."""
        return Decimal(self.rate_milli * HOURS_OF_A_MONTH) / 1000

    @property
    def cost(self) -> Decimal | None:
        """Of a month, in the currency, to two decimals; None without a price."""
        if not self.price:
            return None
        return (self.gpu_hours * Decimal(self.price)).quantize(Decimal("0.01"), ROUND_HALF_UP)


def of_pods(
    pods: Iterable[Json],
    nodes: Mapping[str, AuditedNode],
    settings: BudgetSettings,
    budgets: Mapping[str, Budget],
    now_ms: int,
    metering_of: Callable[[str], Metering] = lambda _: ENFORCED,
) -> tuple[DialectUse, ...]:
    """The use of all bound pods that have not ended, by namespace and dialect, at the prices of ``now_ms``.
    ``nodes``: by name; ``metering_of``: of a namespace. A pod counts with the highest rate that it can have
    on its node."""
    found: dict[tuple[str, str], list[int]] = {}
    for namespace, dialect, rate_milli in _rates(pods, nodes, settings, metering_of):
        found.setdefault((namespace, dialect), []).append(rate_milli)
    return tuple(
        DialectUse(*key, len(rates), sum(rates), _price(key[0], settings, budgets, now_ms), settings.currency)
        for key, rates in sorted(found.items())
    )


def _rates(
    pods: Iterable[Json],
    nodes: Mapping[str, AuditedNode],
    settings: BudgetSettings,
    metering_of: Callable[[str], Metering],
) -> Iterator[tuple[str, str, int]]:
    for pod in pods:
        node = str(mapping(pod.get("spec")).get("nodeName") or "")
        if not node or mapping(pod.get("status")).get("phase") in TERMINAL:
            continue
        namespace = str(mapping(pod.get("metadata")).get("namespace", ""))
        metering = metering_of(namespace)
        charged = charged_request(pod, metering.mode, metering.models)
        if metering.mode == "enforce":
            named = settings.device_models
            new = parse_new(as_written(pod), settings.unknown_accelerators, named=named).request
            charged = new or charged  # metered, whatever the settings say now
        if charged is not None:
            cards = nodes.get(node, _UNKNOWN_NODE).cards
            demand = Demand(request=without_constraints(charged))
            yield namespace, charged.dialect, rated(demand, cards, settings).rate_milli
        elif asks_for_gpus(pod):
            yield namespace, UNREADABLE, 0


def _price(namespace: str, settings: BudgetSettings, budgets: Mapping[str, Budget], now_ms: int) -> str:
    own, usual = (budgets.get(name, UNLIMITED) for name in (namespace, "_defaults"))
    prices = (price_at(each, now_ms, settings.time_zone) for each in (own, usual, settings))
    return next(filter(None, prices), "")


def as_json(found: Sequence[DialectUse]) -> str:
    """An object whose ``items`` are an object for each, amounts as decimal text."""
    return json.dumps({"items": [_one(each) for each in found]}, indent=2) + "\n"


def as_text(found: Sequence[DialectUse]) -> Iterator[str]:
    """A table with a line for each, and one for their sum."""
    rows = [("NAMESPACE", "DIALECT", "PODS", "GPUS", "GPU-HOURS/MONTH", "COST/MONTH")]
    rows += [_row(each.namespace, each.dialect, [each]) for each in found]
    rows.append(_row("all", "", found))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, dialect, *figures in rows:
        words = [name.ljust(widths[0]), dialect.ljust(widths[1])]
        words += [figure.rjust(width) for figure, width in zip(figures, widths[2:], strict=True)]
        yield "  ".join(words).rstrip()


def _row(name: str, dialect: str, uses: Sequence[DialectUse]) -> tuple[str, str, str, str, str, str]:
    costs = [each.cost for each in uses if each.cost is not None]
    return (
        name,
        dialect,
        str(sum(each.pods for each in uses)),
        f"{Decimal(sum(each.rate_milli for each in uses)) / 1000:f}",
        f"{sum((each.gpu_hours for each in uses), Decimal(0)):f}",
        f"{sum(costs)} {uses[0].currency}" if costs else "",
    )


def _one(each: DialectUse) -> dict[str, object]:
    return {
        "namespace": each.namespace,
        "dialect": each.dialect,
        "pods": each.pods,
        "gpus": f"{Decimal(each.rate_milli) / 1000:f}",
        "gpuHoursPerMonth": f"{each.gpu_hours:f}",
        "costPerMonth": None if each.cost is None else str(each.cost),
        "currency": each.currency,
    }
