"""Columns and sheets as values, and a sheet as a Table of Kubernetes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from decimal import Decimal
from typing import Any, Literal, NotRequired, TypedDict

from timekeeper.accounts.usage import decimal, gpu_hours
from timekeeper.core import texts
from timekeeper.core.ledger.metering import calendar_name

Json = Mapping[str, Any]
Value = str | Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Raw:
    """A value that is JSON text already: a decimal number (never a float), or an object."""

    text: str


@dataclass(frozen=True, slots=True)
class CellKind:
    """What the values of columns are. ``format``: in a Table, and by which the dashboard chooses a cell's
    form; ``text(value, now_ms)``: for people; ``is_number``: aligned to the right; ``exact(value, now_ms)``:
    for files, None: as for people."""

    format: str
    text: Callable[[Any, int], str] = lambda value, _: str(value)
    is_number: bool = False
    exact: Callable[[Any, int], str] | None = None

    def __call__(self, key: str, title: str, about: str, value: Value = "", priority: int = 0) -> "Column":
        """A column of this kind."""
        return Column(key=key, title=title, kind=self, about=about, value=value or key, priority=priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``key``: its name in CSV; ``title``: its heading, which kubectl writes in capitals; ``about``: what it
    means; ``value``: the row's field, or a function of the row; ``priority``: above 0 only wide tables have
    it."""

    key: str
    title: str
    kind: CellKind
    about: str
    value: Value
    priority: int

    def of(self, row: Json) -> Any:
        """Its value in a row of the answer; text is for people already."""
        return row[self.value] if isinstance(self.value, str) else self.value(row)

    def cell(self, row: Json, now_ms: int, zone: tzinfo, is_exact: bool) -> str | int | None:
        """The same for people, or for a file, with its times in this zone; None: there is none."""
        value, kind = self.of(row), self.kind
        if value is None and kind is not AMOUNT:
            return None
        if kind is INTEGER:
            return int(value)
        if is_exact and kind.format == "date-time" and isinstance(value, int):
            return texts.exact_moment(value, zone)
        text = kind.exact if is_exact and kind.exact else kind.text
        if kind is MONTH_OF:
            return calendar_name("month", str(zone), value)
        said = value if isinstance(value, str) else text(value, now_ms)
        return texts.in_zone(said, zone) if kind.format in _WITH_TIMES else said


def exact_percent(parts: Sequence[int], _now_ms: int) -> str:
    """The part of the whole as a number; "" without a whole."""
    return decimal(Decimal(100 * parts[0]), Decimal(parts[1])) if parts[1] else ""


TEXT = CellKind("")
NAMESPACE = CellKind("namespace")
POD = CellKind("pod")
OWNER = CellKind("owner")
NODE = CellKind("node")
STANDING = CellKind("standing")
GROUP = CellKind("group")
SENTENCE = CellKind("sentence")
BADGE = CellKind("badge")
MODE = CellKind("mode")
HASH = CellKind("hash")
DECIMAL = CellKind("decimal", is_number=True)
INTEGER = CellKind("int64", is_number=True)
# milli-GPU x ms; None: unlimited
AMOUNT = CellKind(
    "gpu-hours",
    lambda amount, _: texts.cell(amount),
    is_number=True,
    exact=lambda amount, _: "unlimited" if amount is None else gpu_hours(amount),
)
USED = replace(AMOUNT, text=lambda amount, _: texts.cell(amount, is_used=True))  # of what is granted
GPUS = CellKind("gpus", lambda milli, _: texts.gpus(milli), True)  # thousandths
TIME = CellKind("date-time", lambda at_ms, _: texts.moment(at_ms))  # milliseconds since 1970
EXACT = CellKind("date-time", lambda at_ms, _: texts.moment(at_ms, to="seconds"))
MONTH_OF = CellKind("month")
_WITH_TIMES = frozenset(("date-time", "sentence", ""))
AGE = CellKind(
    "duration",
    lambda span, now_ms: texts.age((span[1] or now_ms) - span[0]),
    is_number=True,
    exact=lambda span, now_ms: decimal(Decimal((span[1] or now_ms) - span[0]), Decimal(1000)),
)  # from, to or None
PERCENT = CellKind("percent", lambda parts, _: texts.percent(*parts), True, exact_percent)  # part and whole


class TableColumn(TypedDict):
    """A column. `name`: its heading; `format`: what the cells are, as text, such as `gpu-hours`,
    `date-time`, `duration`, `percent` or `namespace`; `priority`: above 0 only wide tables show it; `key`:
    its name in CSV."""

    name: str
    type: Literal["string", "integer"]
    format: str
    description: str
    priority: int
    key: str


class TableRow(TypedDict):
    """`cells`: for people, null: there is none."""

    cells: list[str | int | None]


class TableAnswer(TypedDict):
    """A Table of `meta.k8s.io/v1`, as kubectl asks for one. `metadata.continue`: the `after` of the next
    page, empty where this is the last; `empty`: what is said where there are no rows; `notes`: sentences
    below the table; `warnings`: about it; `answer`: the plain answer, where a command ends by it. `key`,
    `empty`, `notes`, `warnings` and `answer` are Bursar's own."""

    kind: Literal["Table"]
    apiVersion: Literal["meta.k8s.io/v1"]
    metadata: dict[str, str]
    columnDefinitions: list[TableColumn]
    rows: list[TableRow]
    empty: str
    notes: list[str]
    warnings: list[str]
    answer: NotRequired[dict[str, Any]]


def _none(_answer: Any, _now_ms: int) -> Iterable[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """``rows(answer)``: of a plain answer; ``empty``: said where it has none; ``notes``: sentences below the
    table; ``warnings``: about it; ``chosen(answer)``: the columns, where they depend on the answer;
    ``has_answer``: its Table has the answer."""

    columns: tuple[Column, ...]
    rows: Callable[[Any], Iterable[Json]]
    empty: str = "nothing found"
    notes: Callable[[Any, int], Iterable[str]] = _none
    warnings: Callable[[Any, int], Iterable[str]] = _none
    chosen: Callable[[Any], Iterable[Column]] | None = None
    has_answer: bool = False

    def pick(self, *keys: str) -> tuple[Column, ...]:
        """These columns, in this order."""
        known = {each.key: each for each in self.columns}
        return tuple(known[key] for key in keys)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of CSV, which has exact values."""
        return tuple(each.key for each in self.columns)

    def table(
        self, answer: Json, now_ms: int, zone: tzinfo = UTC, step: str = "", is_exact: bool = False
    ) -> TableAnswer:
        """The answer as a Table, with times of this zone; for people with the name of each ``step`` in place
        of its bounds, for a file (``is_exact``) with all columns and exact figures. ``key``, ``empty``,
        ``notes`` and ``warnings`` are ours: clients of Kubernetes pass over them."""
        columns = self.columns if self.chosen is None else tuple(self.chosen(answer))
        if step and not is_exact:
            columns = tuple(_by_calendar(columns, step))
        lines = (
            [column.cell(row, now_ms, zone, is_exact) for column in columns] for row in self.rows(answer)
        )
        made: TableAnswer = {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"continue": answer.get("next") or ""},
            "columnDefinitions": list(map(_definition, columns)),
            "rows": [{"cells": line} for line in lines],
            "empty": self.empty,
            "notes": [texts.in_zone(said, zone) for said in self.notes(answer, now_ms)],
            "warnings": [texts.in_zone(said, zone) for said in self.warnings(answer, now_ms)],
        }
        if self.has_answer:
            made["answer"] = dict(answer)
        return made


def _by_calendar(columns: Iterable[Column], step: str) -> Iterator[Column]:
    """One column with the name of the hour, day or month in place of its bounds."""
    for column in columns:
        if column.key == "from":
            yield replace(column, title=step.capitalize(), kind=TEXT, value="step")
        elif column.key not in ("to", "step"):
            yield column


def _definition(column: Column) -> TableColumn:
    return {
        "name": column.title,
        "type": "integer" if column.kind is INTEGER else "string",
        "format": column.kind.format,
        "description": column.about,
        "priority": column.priority,
        "key": column.key,
    }
