"""Report lines as JSON or CSV, sent in pieces."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import orjson

from timekeeper.accounts.session import CLAIM
from timekeeper.accounts.usage import (
    LABEL,
    PricedCorrection,
    ReportLine,
    ReportQuery,
    UsageSums,
    cost,
    gpu_hours,
)
from timekeeper.core.ledger.metering import Interval, period_at
from timekeeper.core.ledger.months import month_name
from timekeeper.core.object_names import timestamp

Cells = Mapping[str, Any]

_AMOUNTS = ("posted", "pending", "amount", "gpuHours")
_USE = ("requested", "measured", "used", "usedBy")
_STRANDED = ("stranded", "strandedKnown")
_USE_HOURS = ("requestedGpuHours", "measuredGpuHours", "usedGpuHours")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_AT_ONCE = 500  # rows per piece


def columns(asked: ReportQuery, with_corrections: bool = False) -> tuple[str, ...]:
    """A CSV report's columns."""
    return (
        "from",
        "to",
        *asked.columns,
        *_AMOUNTS,
        "cost",
        *((*_USE, *_USE_HOURS) if asked.with_use else ()),
        *((*_STRANDED, "strandedGpuHours") if asked.with_stranded else ()),
        *(("correction",) if with_corrections else ()),
        *(("clusterName",) if any(name for _, name in asked.clusters) else ()),
    )


def csv_cells(asked: ReportQuery, line: ReportLine) -> dict[str, Any]:
    """One line of a CSV report: as `cells`, with times in ISO 8601, the cost at the line's price (empty
    without one), and use in GPU-hours too."""
    row = cells(asked, line)
    row |= {"from": iso(line.span.start_ms), "to": iso(line.span.end_ms)}
    row["cost"] = Raw(cost(line.sums.amount, row["price"])) if row["price"] else ""
    row |= {"correction": "", "clusterName": _cluster_at(asked, line.span.end_ms - 1)}
    if asked.with_use:
        row |= {hours: gpu_hours(row[name]) for name, hours in zip(_USE, _USE_HOURS, strict=False)}
    if asked.with_stranded:
        row["strandedGpuHours"] = gpu_hours(line.sums.stranded)
    return row


def corrected_cells(asked: ReportQuery, priced: PricedCorrection) -> dict[str, Any]:
    """A correction as a line of a CSV report. Its last cell has reason, author and the month of the wrong
    charge; charges leave it empty."""
    its = priced.correction
    month = month_name(period_at("month", asked.zone, its.at_ms))
    span = asked.step_at(its.created_ms) if asked.step else asked.span
    labels = orjson.loads(priced.of.get("labels", "{}"))
    known = {
        **priced.of,
        **{f"{LABEL}{name}": value for name, value in labels.items()},
        **{"namespace": its.namespace, "pod": its.pod, "group": priced.group},
        **{"price": priced.price, "currency": priced.currency},
        **{"posted": its.amount, "pending": 0, "amount": its.amount, "gpuHours": gpu_hours(its.amount)},
        **{"from": iso(span.start_ms), "to": iso(span.end_ms)},
        "cost": Raw(cost(its.amount, priced.price)) if priced.price else "",
        "correction": f"{its.reason} ({its.actor}; of {month})",
        "clusterName": _cluster_at(asked, its.created_ms),
    }
    return {name: known.get(name, "") for name in columns(asked, True)}


@lru_cache(1_024)  # a report's rows share few distinct times
def _cluster_at(asked: ReportQuery, at_ms: int) -> str:
    return asked.cluster_of(period_at("month", asked.zone, at_ms))


@lru_cache(1_024)
def iso(at_ms: int) -> str:
    """A time in UTC, in whole seconds where it is one."""
    return timestamp(at_ms, "milliseconds" if at_ms % 1000 else "seconds")


def cells(asked: ReportQuery, line: ReportLine) -> dict[str, Any]:
    """One line by column; amounts in milli-GPU x milliseconds and as decimal GPU-hours."""
    sums = line.sums
    has_times = bool(asked.step or asked.beside)
    row: dict[str, Any] = {"from": line.span.start_ms, "to": line.span.end_ms} if has_times else {}
    row |= zip(asked.columns, line.key, strict=True)
    row |= {
        "posted": sums.posted,
        "pending": sums.pending,
        "amount": sums.amount,
        "gpuHours": gpu_hours(sums.amount),
    }
    if asked.with_use:
        use = (sums.requested, sums.measured, sums.used, sums.used_by)
        row |= zip(_USE, use, strict=True)
    if asked.with_stranded:
        row |= zip(_STRANDED, (sums.stranded, sums.known_ms), strict=True)
    return row


def nested(row: Cells) -> dict[str, Any]:
    """The line for JSON, with labels in an object of their own."""
    labels = {name.removeprefix(LABEL): value for name, value in row.items() if name.startswith(LABEL)}
    rest = {name: value for name, value in row.items() if not name.startswith(LABEL)}
    return {**rest, "labels": labels} if labels else rest


class RunningTotal:
    """The running sum of the lines."""

    def __init__(self, lines: Iterable[ReportLine]) -> None:
        self.amount = 0
        self._lines = lines

    def __iter__(self) -> Iterator[ReportLine]:
        for line in self._lines:
            self.amount += line.sums.amount
            yield line


def as_json(head: Cells, rows: Iterable[Cells], tail: Callable[[], Cells]) -> Iterator[bytes]:
    """An object with the fields of ``head``, the list ``rows``, and the fields known after the last row."""
    yield orjson.dumps(head)[:-1] + b',"rows":['
    between = b""
    for piece in _pieces(rows):
        yield between + orjson.dumps(piece, _raw, orjson.OPT_PASSTHROUGH_DATACLASS)[1:-1]
        between = b","
    yield b"]," + orjson.dumps(tail())[1:]


def as_csv(names: Sequence[str], rows: Iterable[Cells]) -> Iterator[bytes]:
    """CSV with a header line."""
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow([safe(name) for name in names])
    for piece in _pieces(rows):
        writer.writerows([_cell(name, row[name]) for name in names] for row in piece)
        yield sheet.getvalue().encode()
        sheet.seek(0)
        sheet.truncate()
    yield sheet.getvalue().encode()


def safe(text: str) -> str:
    """Text that a spreadsheet displays and does not evaluate: an apostrophe precedes anything that looks like
    a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


@dataclass(frozen=True, slots=True)
class Raw:
    """A value that is JSON text already: a decimal number (never a float), or an object."""

    text: str


def _raw(value: object) -> orjson.Fragment:
    if not isinstance(value, Raw):
        raise TypeError(f"{type(value)} cannot be written as JSON")
    return orjson.Fragment(value.text)


def _cell(name: str, value: Any) -> Any:
    if isinstance(value, Raw):
        return value.text
    return safe(value) if isinstance(value, str) and name not in _AMOUNTS else value


def _pieces(rows: Iterable[Cells]) -> Iterator[list[Cells]]:
    given = iter(rows)
    while piece := list(islice(given, _AT_ONCE)):
        yield piece


_OF_POD = ("namespace", "group", "price", "currency", "uid", "pod", "owner", "node", "models", "labels")
_OF_CLAIM = ("classes", "drivers", "devices")
COLUMNS = (*_OF_POD, *_OF_CLAIM)
PLACE = 5  # enough to identify a row within its time: the rest follows from the UID

_PROVIDER = "Bursar"
_UNIT = "GPU-Hours"  # for a card of weight 1

NAMES = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
    "x_Amount",
    "x_PendingAmount",
    "x_RequestedAmount",
    "x_MeasuredAmount",
    "x_UsedAmount",
    "x_UsedBy",
    "x_Group",
    "x_Owner",
    "x_Node",
    "x_GpuModels",
    "x_DeviceClasses",
    "x_Drivers",
    "x_Devices",
    "x_ClusterName",
)


def row(asked: ReportQuery, line: ReportLine) -> Cells:
    """One report line with `COLUMNS`, by column; None is null."""
    keys = dict(zip(asked.columns, line.key, strict=True))
    billed = period_at("month", asked.zone, line.span.start_ms)
    is_claim = CLAIM in keys["uid"]
    values = {
        **_ALWAYS,
        **_money(line, keys),
        **_resource(keys),
        **_billing(asked, billed),
        "ChargePeriodStart": iso(line.span.start_ms),
        "ChargePeriodEnd": iso(line.span.end_ms),
        "ChargeDescription": f"GPU time of {'claim' if is_claim else 'pod'} {keys['pod']}",
        **_amounts(line),
    }
    return {name: values.get(name) for name in NAMES}


def corrected_row(asked: ReportQuery, priced: PricedCorrection) -> Cells:
    """A correction with `COLUMNS`: billed when it was made, for the day of the wrong charge, of the
    pod, or of the namespace where it names none."""
    its = priced.correction
    billed = period_at("month", asked.zone, its.created_ms)
    of = period_at("day", asked.zone, its.at_ms)
    line = ReportLine(of, (), UsageSums(posted=its.amount))
    name = its.pod or its.namespace
    keys = {**dict.fromkeys(COLUMNS, ""), "uid": name, "pod": name, "labels": "{}", **priced.of}
    keys |= {"namespace": its.namespace, "group": priced.group}
    keys |= {"price": priced.price, "currency": priced.currency}
    values = {
        **_ALWAYS,
        **_money(line, keys),
        **_resource(keys),
        "ChargeClass": "Correction",
        "ChargeFrequency": "One-Time",
        **_billing(asked, billed),
        "ChargePeriodStart": iso(of.start_ms),
        "ChargePeriodEnd": iso(of.end_ms),
        "ChargeDescription": f"Correction by {its.actor}: {its.reason}",
        "x_Amount": its.amount,
        "x_PendingAmount": 0,
    }
    if not its.pod:
        values["ResourceType"] = "Namespace"
    return {name: values.get(name) for name in NAMES}


def _billing(asked: ReportQuery, month: Interval) -> Cells:
    return {
        "BillingPeriodStart": iso(month.start_ms),
        "BillingPeriodEnd": iso(month.end_ms),
        "x_ClusterName": asked.cluster_of(month) or None,
    }


def _resource(keys: Mapping[str, str]) -> Cells:
    """What was charged, by the values of `COLUMNS`."""
    return {
        "ResourceId": keys["uid"],
        "ResourceName": keys["pod"],
        "ResourceType": "ResourceClaim" if CLAIM in keys["uid"] else "Pod",
        "SubAccountId": keys["namespace"],
        "SubAccountName": keys["namespace"],
        "Tags": Raw(keys["labels"]),
        "x_Group": keys["group"] or None,
        "x_Owner": keys["owner"] or None,
        "x_Node": keys["node"] or None,
        "x_GpuModels": keys["models"] or None,
        "x_DeviceClasses": keys["classes"] or None,
        "x_Drivers": keys["drivers"] or None,
        "x_Devices": keys["devices"] or None,
    }


_ALWAYS = {
    "BillingAccountId": "bursar",
    "BillingAccountName": _PROVIDER,
    "BillingAccountType": "Cluster",
    "ChargeCategory": "Usage",
    "ChargeFrequency": "Usage-Based",
    "InvoiceIssuerName": _PROVIDER,
    "ProviderName": _PROVIDER,
    "PublisherName": _PROVIDER,
    "ServiceCategory": "Compute",
    "ServiceName": "GPU time",
    "ServiceSubcategory": "Containers",
    "SubAccountType": "Namespace",
}


def _sku(keys: Mapping[str, str]) -> str:
    """The model, of a claim's devices below their driver."""
    return f"{keys['drivers'] or 'gpu'}/{keys['models'] or 'unknown'}"


def _money(line: ReportLine, keys: Mapping[str, str]) -> Cells:
    """Without a price the unit price is 0, and so is every cost: of usage FOCUS leaves none empty."""
    price, currency, sku = keys["price"] or "0", keys["currency"], _sku(keys)
    hours, costs = Raw(gpu_hours(line.sums.amount)), Raw(cost(line.sums.amount, price))
    return {
        "BilledCost": costs,
        "EffectiveCost": costs,
        "ListCost": costs,
        "ContractedCost": costs,
        "BillingCurrency": currency,
        "ConsumedQuantity": hours,
        "ConsumedUnit": _UNIT,
        "PricingQuantity": hours,
        "PricingUnit": _UNIT,
        "SkuId": sku,
        "SkuPriceId": sku,
        "SkuMeter": "GPU time",
        "ListUnitPrice": Raw(price),
        "ContractedUnitPrice": Raw(price),
        "PricingCategory": "Standard",
        "PricingCurrency": currency,
    }


def _amounts(line: ReportLine) -> Cells:
    sums = line.sums
    return {
        "x_Amount": sums.amount,
        "x_PendingAmount": sums.pending,
        "x_RequestedAmount": sums.requested,
        "x_MeasuredAmount": sums.measured,
        "x_UsedAmount": sums.used,
        "x_UsedBy": sums.used_by,
    }
