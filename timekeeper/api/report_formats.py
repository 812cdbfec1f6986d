"""Report lines as JSON or CSV, sent in pieces."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import orjson

from timekeeper.accounts.usage import (
    LABEL,
    PricedCorrection,
    ReportLine,
    ReportQuery,
    cost,
    gpu_hours,
)
from timekeeper.api.sheets.focus import FOCUS
from timekeeper.api.sheets.sheet import Raw
from timekeeper.api.sheets.usage import CHARGED, OF_CLUSTERS, OF_CORRECTIONS, OF_USE
from timekeeper.core.ledger.metering import Interval, calendar_name, period_at
from timekeeper.core.ledger.months import Months, month_name
from timekeeper.core.texts import exact_moment

Cells = Mapping[str, Any]

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_AT_ONCE = 500  # rows per piece
_MEASURED = ("measured", "used", "unused", "usedBy")  # None where it is not kept
_HOURS = {f"{figure}GpuHours": figure for figure in ("requested", "measured", "used")}


def columns(asked: ReportQuery, with_corrections: bool = False) -> tuple[str, ...]:
    """A CSV report's columns."""
    figures = (
        *CHARGED,
        *(OF_USE if asked.with_use else ()),
        *(OF_CORRECTIONS if with_corrections else ()),
        *(OF_CLUSTERS if any(name for _, name in asked.clusters) else ()),
    )
    step = ("step",) if asked.step else ()
    return ("from", "to", *step, *asked.columns, *(column.key for column in figures))


def _priced(asked: ReportQuery, line: ReportLine, zone: tzinfo = UTC) -> dict[str, Any]:
    """One line as `cells`, with times of the zone in ISO 8601, the cost at the line's price (empty without
    one), and the cluster's name."""
    row = cells(asked, line)
    row |= _bounds(line.span, zone)
    row |= {"gpuHours": Raw(row["gpuHours"]), "cost": _cost(line.sums.amount, row["price"])}
    month = _month_at(asked.months, line.span.end_ms - 1)
    return row | {"correction": "", "clusterName": asked.cluster_of(month)}


def csv_cells(asked: ReportQuery, line: ReportLine) -> dict[str, Any]:
    """One line of a CSV report, with use in GPU-hours too, and times of the report's zone."""
    row = _priced(asked, line, ZoneInfo(asked.zone))
    hours = {name: row[figure] for name, figure in _HOURS.items() if figure in row}
    return row | {name: amount if amount is None else gpu_hours(amount) for name, amount in hours.items()}


def corrected_cells(asked: ReportQuery, priced: PricedCorrection) -> dict[str, Any]:
    """A correction as a line of a CSV report. Its last cell has reason, author and the month of the wrong
    charge; charges leave it empty."""
    span = asked.step_at(priced.correction.created_ms) if asked.step else priced.span
    known = _corrected(asked, priced) | _bounds(span, ZoneInfo(asked.zone)) | _step(asked, _middle(span))
    return {name: known.get(name, "") for name in columns(asked, True)}


def _bounds(span: Interval, zone: tzinfo = UTC) -> dict[str, str]:
    return {"from": iso(span.start_ms, zone), "to": iso(span.end_ms, zone)}


def _step(asked: ReportQuery, at_ms: int) -> dict[str, str]:
    """What the calendar calls the step of this moment."""
    return {"step": _named(asked.step, asked.zone, at_ms)} if asked.step else {}


def _middle(span: Interval) -> int:
    """A moment that the calendar has in the span's step, whatever time zones cut the ends of months."""
    return (span.start_ms + span.end_ms) // 2


iso, _named = lru_cache(1_024)(exact_moment), lru_cache(1_024)(calendar_name)


def _corrected(asked: ReportQuery, priced: PricedCorrection) -> dict[str, Any]:
    correction, amount = priced.correction, priced.correction.amount
    month = month_name(_month_at(asked.months, correction.at_ms))
    labels = orjson.loads(priced.part.of.get("labels", "{}"))
    return {
        **priced.part.of,
        **{f"{LABEL}{name}": value for name, value in labels.items()},
        **{"namespace": correction.namespace, "pod": correction.pod, "group": priced.group},
        **{"price": priced.price, "currency": priced.currency},
        **{"posted": amount, "pending": 0, "amount": amount, "gpuHours": Raw(gpu_hours(amount))},
        "cost": _cost(amount, priced.price),
        "correction": f"{correction.reason} ({correction.actor}; of {month})",
        "clusterName": asked.cluster_of(_month_at(asked.months, correction.created_ms)),
    }


def _cost(amount: int, price: str) -> Raw | str:
    return Raw(cost(amount, price)) if price else ""


@lru_cache(1_024)  # a report's rows share few distinct times
def _month_at(months: Months, at_ms: int) -> Interval:
    return months.at(at_ms)


def cells(asked: ReportQuery, line: ReportLine) -> dict[str, Any]:
    """One line by column; amounts in milli-GPU x milliseconds and as decimal GPU-hours."""
    sums = line.sums
    has_times = bool(asked.step or asked.beside)
    row: dict[str, Any] = {"from": line.span.start_ms, "to": line.span.end_ms} if has_times else {}
    row |= _step(asked, _middle(line.span))
    row |= zip(asked.columns, line.key, strict=True)
    row |= {
        "posted": sums.posted,
        "pending": sums.pending,
        "amount": sums.amount,
        "gpuHours": gpu_hours(sums.amount),
    }
    if asked.with_use:
        row |= {"requested": sums.requested, "measured": sums.measured, "used": sums.used}
        row["unused"] = sums.unused
        row["usedBy"] = sums.used_by
        if line.span.end_ms <= asked.use_since_ms:
            row |= dict.fromkeys(_MEASURED)
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
        writer.writerows([_cell(row[name]) for name in names] for row in piece)
        yield sheet.getvalue().encode()
        sheet.seek(0)
        sheet.truncate()
    yield sheet.getvalue().encode()


def safe(text: str) -> str:
    """Text that a spreadsheet displays and does not evaluate: an apostrophe precedes anything that looks like
    a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _raw(value: object) -> orjson.Fragment:
    if not isinstance(value, Raw):
        raise TypeError(f"{type(value)} cannot be written as JSON")
    return orjson.Fragment(value.text)


def _cell(value: Any) -> Any:
    if isinstance(value, Raw):
        return value.text
    return safe(value) if isinstance(value, str) else value


def _pieces(rows: Iterable[Cells]) -> Iterator[list[Cells]]:
    given = iter(rows)
    while piece := list(islice(given, _AT_ONCE)):
        yield piece


_OF_POD = ("namespace", "group", "price", "currency", "uid", "pod", "owner", "workload", "node", "models")
_OF_CLAIM = ("claim", "classes", "drivers", "devices")
COLUMNS = (*_OF_POD, "labels", *_OF_CLAIM)
PLACE = 5  # enough to identify a row within its time: the rest follows from the UID


def focus_row(asked: ReportQuery, line: ReportLine) -> Cells:
    """One report line with `COLUMNS`, by column of FOCUS; None is null."""
    row = _priced(asked, line)
    row["type"] = "ResourceClaim" if row["claim"] else "Pod"
    row["description"] = f"GPU time of {'claim' if row['claim'] else 'pod'} {row['pod']}"
    return _focus(asked, row, line.span.start_ms)


def corrected_focus_row(asked: ReportQuery, priced: PricedCorrection) -> Cells:
    """A correction: billed when it was made, for the days of what it corrects, of the pod, or of the
    namespace where it names none."""
    correction, part = priced.correction, priced.part
    first, last = (period_at("day", asked.zone, at_ms) for at_ms in (part.from_ms, part.to_ms - 1))
    own = dict.fromkeys(("uid", "pod"), correction.pod or correction.namespace) | {"labels": "{}"}
    own |= {name: part.of[name] for name in own if name in part.of}
    row = dict.fromkeys(COLUMNS, "") | _corrected(asked, priced) | own
    row |= _bounds(Interval(first.start_ms, last.end_ms)) | _step(asked, first.start_ms)
    row["type"] = "Namespace" if not correction.pod else "ResourceClaim" if row["claim"] else "Pod"
    row["description"] = f"Correction by {correction.actor}: {correction.reason}"
    return _focus(asked, row, correction.created_ms)


def _focus(asked: ReportQuery, row: dict[str, Any], billed_ms: int) -> Cells:
    month = _month_at(asked.months, billed_ms)
    row |= {"billedFrom": iso(month.start_ms), "billedTo": iso(month.end_ms)}
    return {column.key: column.of(row) for column in FOCUS.columns}
