"""The bill as a sheet."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from timekeeper.cli.output import PrintedColumn, PrintedSheet
from timekeeper.core.texts import cost, hours, percent

_GPU_HOURS = PrintedColumn("gpuHours", "GPU-HOURS", True)
_USE = (
    PrintedColumn("busy", "BUSY", True),
    PrintedColumn("requestedGpuHours", "REQUESTED, UNWEIGHTED", True),
)
_CHARGE = ("posted", "pending", "amount", "gpuHours")
_USE_HOURS = ("requestedGpuHours", "measuredGpuHours", "usedGpuHours")
_SUMS = (*_CHARGE, "requested", "measured", "used", "unused", *_USE_HOURS)
_NO_CHARGE = "nothing was charged in this time"
_FORTNIGHT = timedelta(days=14)  # after a month begins in any zone, UTC has the same month
_MONTH = PrintedColumn("from", "MONTH")
_BILL = (
    _GPU_HOURS,
    PrintedColumn("price", "PRICE", True),
    PrintedColumn("cost", "COST", True),
    PrintedColumn("currency", "CURRENCY"),
    *_USE,
)


def bill(text: str) -> PrintedSheet:
    """The sheet of the API's CSV with the total below; a column without any value is left out."""
    reader = csv.DictReader(io.StringIO(text))
    lines = sorted(reader, key=lambda raw: (raw["currency"], -Decimal(raw["cost"] or 0)))
    names = list(reader.fieldnames or ())
    keys = names[names.index("to") + 1 : names.index("price")]
    rows = tuple({**_billed(raw), **{key: raw[key] or None for key in keys}} for raw in lines)
    figures = tuple(each for each in _BILL if any(row[each.key] for row in rows))
    for name, title in (("correction", "CORRECTION"), ("clusterName", "CLUSTER")):
        figures += (PrintedColumn(name, title),) if name in names else ()
    columns = (_MONTH, *(PrintedColumn(key, key.upper()) for key in keys), *figures)
    total = _total(lines, [each for each in _SUMS if each in names])
    answer = {"items": lines, "total": total}
    return PrintedSheet(columns, rows, answer, empty=_NO_CHARGE, totals=tuple(_totals(total)) if rows else ())


def _total(bill: Sequence[Mapping[str, str]], figures: Iterable[str]) -> dict[str, Any]:
    """The sums of a bill's figures, under their names and as text, as in its rows; ``costs``: by currency, of
    the rows with a price."""
    sums = {name: _sum(raw[name] for raw in bill) for name in figures}
    currencies = sorted({raw["currency"] for raw in bill if raw["cost"]})
    costs = [
        {"cost": _sum(raw["cost"] for raw in bill if raw["currency"] == currency), "currency": currency}
        for currency in currencies
    ]
    return {**sums, "costs": costs}


def _sum(figures: Iterable[str]) -> str:
    """The sum of decimal numbers, of which an empty one is 0."""
    return f"{sum((Decimal(each or 0) for each in figures), Decimal(0)).normalize():f}"


def _totals(total: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The total as rows of the table: the first has the hours, and each has the cost in one currency."""
    sums = {
        "from": "TOTAL",
        "gpuHours": hours(int(total["amount"])),
        "requestedGpuHours": hours(int(total["requested"])),
        "busy": _busy(total),
    }
    costs = [{"cost": cost(each["cost"]), "currency": each["currency"]} for each in total["costs"]]
    yield {**sums, **(costs[0] if costs else {})}
    yield from costs[1:]


def _billed(raw: Mapping[str, str]) -> dict[str, str]:
    return {
        **raw,
        "from": f"{datetime.fromisoformat(raw['from']) + _FORTNIGHT:%Y-%m}",
        "cost": cost(raw["cost"]),
        "currency": raw["currency"] if raw["price"] else "",
        "gpuHours": hours(int(raw["amount"])),
        "requestedGpuHours": hours(int(raw["requested"] or 0)),
        "busy": _busy(raw),
    }


def _busy(figures: Mapping[str, Any]) -> str:
    """How much of what was measured was used; corrections have no such figures."""
    measured, unused = (int(figures[name] or 0) for name in ("measured", "unused"))
    return percent(measured - unused, measured)
