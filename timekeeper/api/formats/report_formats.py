"""Report lines as JSON or CSV, sent in pieces."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import orjson

from timekeeper.accounts.usage import LABEL, ReportLine, ReportQuery, cost, gpu_hours
from timekeeper.core.kube.timestamps import timestamp

Cells = Mapping[str, Any]

_AMOUNTS = ("posted", "pending", "amount", "gpuHours")
_USE = ("requested", "measured", "used", "usedBy")
_USE_HOURS = ("requestedGpuHours", "measuredGpuHours", "usedGpuHours")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_AT_ONCE = 500  # rows per piece


def columns(asked: ReportQuery) -> tuple[str, ...]:
    """A CSV report's columns."""
    return (
        "from",
        "to",
        *asked.columns,
        *_AMOUNTS,
        "cost",
        *((*_USE, *_USE_HOURS) if asked.with_use else ()),
    )


def csv_cells(asked: ReportQuery, line: ReportLine) -> dict[str, Any]:
    """One line of a CSV report: as `cells`, with times in ISO 8601, the cost at the line's price (empty
    without one), and use in GPU-hours too."""
    row = cells(asked, line)
    row |= {"from": iso(line.span.start_ms), "to": iso(line.span.end_ms)}
    row["cost"] = Raw(cost(line.sums.amount, row["price"])) if row["price"] else ""
    if asked.with_use:
        row |= {hours: gpu_hours(row[name]) for name, hours in zip(_USE, _USE_HOURS, strict=False)}
    return row


@lru_cache(1_024)  # a report's rows share few distinct times
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
