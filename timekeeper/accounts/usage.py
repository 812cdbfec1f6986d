"""Usage reports: what charges are grouped by, over which intervals, and an amount in hours and money."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from timekeeper.accounts.budget_history import History
from timekeeper.core.budgets.policy import GPU_HOUR
from timekeeper.core.findings import some_of
from timekeeper.core.ledger.metering import FOREVER_MS, Interval, period_at
from timekeeper.core.ledger.months import ChargeCorrection, CorrectedPart, Months, months_of

_DIGITS = Decimal("0.000000000001")  # fine enough to distinguish neighbouring amounts

# what a report can be grouped by -> the columns that identify a row
GROUPS = {
    "namespace": ("namespace",),
    "group": ("group",),
    "pod": ("namespace", "pod", "uid", "owner", "node", "models"),
    "owner": ("namespace", "owner"),
    "workload": ("namespace", "workload"),
    "node": ("node",),
    "model": ("models",),
    "claim": ("namespace", "claim"),
    "class": ("classes",),
    "driver": ("drivers",),
    "device": ("drivers", "devices"),
}
# columns that sessions of claims alone have: in a row of several devices each once, with commas between them
BY_DEVICE = ("classes", "drivers", "devices")
CLAIMED = ("claim", *BY_DEVICE)
LABEL = "label:"  # a pod's label as a column is label:NAME

# columns that follow from a namespace by its budget entries at the time
DATED = ("group", "price", "currency")

PRICE = ("price", "currency")

ORDERS = ("gpuHours", "-gpuHours")

TIME_STEPS = ("hour", "day", "month")
MAX_STEPS = 10_000
_LAST_STEP_MS = FOREVER_MS - 731 * 86_400_000  # the calendar ends with the year 9997
_UTC_MONTHS = months_of("UTC")
_SHORTEST_MS = {"hour": 3_600_000, "day": 23 * 3_600_000, "month": 28 * 86_400_000}


@dataclass(frozen=True, slots=True)
class PriceInterval:
    """A time during which namespaces were in one group and had one price."""

    namespaces: tuple[str, ...]
    from_ms: int
    to_ms: int
    group: str
    price: str
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedCorrection:
    """A part of a correction of a bill, with its group and price; ``correction`` has its amount and time;
    ``span``: the time range it was made in."""

    correction: ChargeCorrection
    span: Interval
    group: str
    price: str
    currency: str
    part: CorrectedPart


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Totals of a report line; milli-GPU x milliseconds, except those in milliseconds."""

    posted: int = 0
    pending: int = 0
    requested: int = 0  # what the pods held, unweighted, during the charged time
    measured: int = 0  # the part of ``requested`` during which use was measured
    used: int = 0  # what was used during that time
    unused: int = 0  # what was measured and not used, by session and hour: no grouping changes it
    by_node_ms: int = 0  # how long the node's agent measured
    by_tenant_ms: int = 0  # how long the pod's own sidecar measured

    @property
    def amount(self) -> int:
        """The charge, in milli-GPU x ms."""
        return self.posted + self.pending

    @property
    def used_by(self) -> str | None:
        """Where the measurement comes from; None if nothing was measured."""
        words = (("node", self.by_node_ms), ("tenant", self.by_tenant_ms))
        return " and ".join(word for word, ms in words if ms) or None


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One line of a report: the values of its columns, and its totals in an interval."""

    span: Interval
    key: tuple[str, ...]
    sums: UsageSums


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """What a usage report is about."""

    span: Interval
    columns: tuple[str, ...]
    now_ms: int
    namespace: str | None = None  # None: all namespaces
    group: str = ""  # only what namespaces were charged while they were in this group; "": any
    step: str = ""  # calendar unit of the intervals; "": one interval
    zone: str = "UTC"
    months: Months = _UTC_MONTHS  # those of the ledger, or of a zone that was asked for
    with_use: bool = False
    after: tuple[int, tuple[str, ...]] | None = None  # continue after this step and key
    beside: tuple[Interval, ...] = ()  # further time ranges, whose lines follow; not with a step or ``after``
    order: str = ""  # one of `ORDERS`: by amount, or the largest first; "": by the columns
    clusters: tuple[tuple[int, str], ...] = ()  # `History.cluster_names`
    use_since_ms: int = 0  # use that was measured before is not kept

    def cluster_of(self, month: Interval) -> str:
        """The cluster's name in a month: that of its end, so a later one changes nothing of it; "": none."""
        return next((name for at_ms, name in reversed(self.clusters) if at_ms < month.end_ms), "")

    @property
    def cost(self) -> int:
        """How much work the report is, for comparison with others: its steps, and how fine its rows are."""
        steps = self.span.length_ms // _SHORTEST_MS[self.step] + 1 if self.step else 1
        return (steps + len(self.beside)) * (1 + len(self.columns)) * (2 if self.with_use else 1)

    @property
    def has_dated(self) -> bool:
        """Whether budget entries are needed."""
        return bool(self.group or set(DATED) & set(self.columns))

    @property
    def is_whole(self) -> bool:
        """Whether it reads all namespaces."""
        return self.namespace is None and not self.group

    @property
    def hull(self) -> Interval:
        """From the first to the last moment of all its time ranges."""
        spans = (self.span, *self.beside)
        return Interval(min(each.start_ms for each in spans), max(each.end_ms for each in spans))

    @property
    def has_too_many_steps(self) -> bool:
        """True for more than `MAX_STEPS` intervals."""
        return bool(self.step) and self.span.length_ms > MAX_STEPS * _SHORTEST_MS[self.step]

    @property
    def rest(self) -> Interval:
        """The time range without what lies before ``after``."""
        start_ms = self.span.start_ms if self.after is None else max(self.after[0], self.span.start_ms)
        whole = Interval(start_ms, max(start_ms, self.span.end_ms))
        return whole.within(Interval(0, _LAST_STEP_MS)) if self.step else whole

    def step_at(self, at_ms: int) -> Interval:
        """The step that contains a moment of `rest`, as far as it lies there."""
        is_month = self.step == "month"
        step = self.months.at(at_ms) if is_month else period_at(self.step, self.zone, at_ms)
        return step.within(self.rest)


def columns_of(groups: Iterable[str]) -> tuple[str, ...]:
    """The columns of a report that is grouped so, each once, labels last."""
    columns: dict[str, None] = {}
    for group in groups:
        columns |= dict.fromkeys(GROUPS.get(group, (group,)))
    return tuple(sorted(columns, key=lambda column: column.startswith(LABEL)))


def price_intervals(
    history: History, namespaces: Iterable[str], span: Interval, group: str = ""
) -> Iterator[PriceInterval]:
    """Group and price of each namespace throughout the span, cut where either changed, once for all with the
    same terms; with ``group`` only while they were in that group."""
    alike: dict[Hashable, list[str]] = {}
    for namespace in namespaces:
        if not group or group in history.groups_of(namespace):
            alike.setdefault(history.billing_terms(namespace, span), []).append(namespace)
    for names in map(tuple, alike.values()):
        for terms in history.billing_intervals(names[0], span):
            start_ms, end_ms = terms.interval.start_ms, terms.interval.end_ms
            if group in ("", terms.group):
                yield PriceInterval(names, start_ms, end_ms, terms.group, terms.price, terms.currency)


def gpu_hours(amount: int) -> str:
    """An amount in GPU-hours as decimal text: exact if finite, else to 12 places, from which the amount can
    still be recovered."""
    return decimal(Decimal(amount), Decimal(GPU_HOUR))


def figures_of_waste(pods: list[str], used: int, why: str) -> dict[str, int | str]:
    """Of a finding on these pods: what they have cost by now, in milli-GPU x ms, and somebody's words why."""
    return {"number": len(pods), "hours": f"{float(gpu_hours(used)):.4g}", "where": some_of(pods), "why": why}


def cost(amount: int, price: str) -> str:
    """An amount at a price per GPU-hour as decimal text, to 12 places."""
    return decimal(Decimal(amount) * Decimal(price), Decimal(GPU_HOUR))


def decimal(numerator: Decimal, denominator: Decimal) -> str:
    """The quotient as decimal text, to 12 places."""
    with localcontext() as context:
        context.prec = 60
        value = (numerator / denominator).quantize(_DIGITS, ROUND_HALF_EVEN)
    text = f"{value:f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
