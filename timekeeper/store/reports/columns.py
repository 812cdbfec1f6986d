"""Report columns that no table has: labels, and fields of budget entries."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    collate,
    column,
    func,
    literal,
    literal_column,
    select,
)

from timekeeper.accounts.usage import DATED, PriceInterval
from timekeeper.store.sessions import json_rows, json_text

Expression = ColumnElement[Any]

_OF_DEVICE = {"classes": ("class",), "drivers": ("driver",), "devices": ("pool", "device")}
_TERMS = ("from_ms", "to_ms", *DATED)


def of_namespaces(dialect: str, namespace: Expression, only: str | None, some: str) -> list[Expression]:
    """The conditions for the rows of one namespace, of those in the parameter ``some``, or of all ("")."""
    if only is not None:
        return [namespace == only]
    if not some:
        return []
    if dialect == "postgresql":
        return [namespace == any_(bindparam(some, type_=ARRAY(Text)))]
    given = func.json_each(bindparam(some, type_=Text)).table_valued(column("value", Text))
    return [namespace.in_(select(given.c.value))]


def ordered(dialect: str, value: Expression) -> Expression:
    """Text ordered by its bytes on every database, so that reports are equal."""
    return collate(value, "C") if dialect == "postgresql" else value


def without_index(dialect: str, found: Expression) -> Expression:
    """A column that SQLite compares and sorts without an index (sqlite.org/optoverview.html, "unary +").
    By the session's number it would look up posting after posting all over the file."""
    return literal_column(f"+{found}", found.type).label(found.key) if dialect == "sqlite" else found


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The devices of a row of sessions, to be joined to it: nothing for a pod, and for a claim whose devices
    are not kept, or do not add up to its rate."""

    dialect: str
    table: Any

    def text(self, rows: Any, name: str) -> Expression:
        """One of `BY_DEVICE`, of the device; where there is none, as `claimed`."""
        own = func.coalesce(_text_of(self.dialect, self.table.c.value, name), "")
        return case((self._is_none, claimed(self.dialect, rows, name)), else_=own)

    def part(self, name: str, amount: Expression, rows: Any) -> Expression:
        """The device's part of one of the row's sums. All parts are the sum, to the unit: a charge is the
        rate times a time. Nothing says which of a claim's devices was used: that stands with the first."""
        if name in ("posted", "pending"):
            own = amount / func.nullif(rows.rate_milli, 0) * _rate(self.dialect, self.table.c.value)
        elif name in ("requested", "measured"):
            own = amount / func.nullif(rows.requested_milli, 0) * _milli(self.dialect, self.table.c.value)
        elif name == "unused":  # to the unit of each device, for it is no rate times a time
            own = amount * _milli(self.dialect, self.table.c.value) / func.nullif(rows.requested_milli, 0)
        else:
            own = case((self._place == 0, amount), else_=0)
        return case((self._is_none, amount), else_=func.coalesce(own, 0))

    @property
    def _is_none(self) -> Expression:
        return self._place.is_(None)

    @property
    def _place(self) -> Expression:
        """From 0 on."""
        place: Expression = self.table.c.place - 1 if self.dialect == "postgresql" else self.table.c.key
        return place


def device_rows(dialect: str, rows: Any) -> DeviceRows:
    """See `DeviceRows`. ``rows``: the columns of sessions."""
    is_claim = and_(rows.kind == "claim", rows.devices != "")
    every = case((is_claim, rows.devices), else_="[]")
    one = _elements(dialect, every).c.value
    sums = [func.coalesce(func.sum(found(dialect, one)), 0) for found in (_rate, _milli)]
    rate, milli = (select(each).scalar_subquery() for each in sums)
    is_whole = and_(is_claim, rate == rows.rate_milli, milli == rows.requested_milli)
    held = case((is_whole, rows.devices), else_="[]")
    if dialect == "postgresql":
        found = func.json_array_elements(cast(held, JSON))
        table = found.table_valued(column("value", JSON), with_ordinality="place", name="held")
        return DeviceRows(dialect, table.render_derived())
    return DeviceRows(dialect, func.json_each(held).table_valued("key", "value", name="held"))


def _elements(dialect: str, devices: Expression) -> Any:
    if dialect == "postgresql":
        return func.json_array_elements(cast(devices, JSON)).table_valued(column("value", JSON))
    return func.json_each(devices).table_valued("value")


def _member(dialect: str, device: Expression, name: str) -> Expression:
    if dialect == "postgresql":
        return device.op("->>")(literal(name))
    return func.json_extract(device, literal(f"$.{name}"))


def _text_of(dialect: str, device: Expression, name: str) -> Expression:
    """A device is named as POOL/DEVICE: its driver stands beside it."""
    parts = [cast(_member(dialect, device, part), Text) for part in _OF_DEVICE[name]]
    return parts[0] if len(parts) == 1 else parts[0] + literal("/") + parts[1]


def _milli(dialect: str, device: Expression) -> Expression:
    return cast(_member(dialect, device, "milli"), BigInteger)


def _rate(dialect: str, device: Expression) -> Expression:
    own = cast(_member(dialect, device, "rate"), BigInteger)
    return func.coalesce(own, _milli(dialect, device))


def claimed(dialect: str, rows: Any, name: str) -> Expression:
    """One of `CLAIMED` of a row of sessions, of all its devices; empty for a pod's, and where its devices are
    not kept."""
    is_claim = rows.kind == "claim"
    if name == "claim":
        return case((is_claim, rows.name), else_="")
    text = _text_of(dialect, _elements(dialect, rows.devices).c.value, name)
    found = select(ordered(dialect, text).label("text")).distinct().order_by("text").subquery()
    joined = func.string_agg if dialect == "postgresql" else func.group_concat
    texts = select(joined(found.c.text, literal(","))).select_from(found).scalar_subquery()
    return case((and_(is_claim, rows.devices != ""), func.coalesce(texts, "")), else_="")


def dated(dialect: str, terms: tuple[PriceInterval, ...]) -> CTE:
    """The price intervals as a table, for each of their namespaces: two parameters for any number."""
    numbers = {
        names: number for number, names in enumerate({interval.namespaces: None for interval in terms})
    }
    listed = ((number, name) for names, number in numbers.items() for name in names)
    members = json_rows(
        dialect, "members", {"number": BigInteger, "namespace": Text}, literal(json_text(listed))
    )
    columns = {"number": BigInteger, "from_ms": BigInteger, "to_ms": BigInteger, **dict.fromkeys(DATED, Text)}
    rows = ((numbers[interval.namespaces], *attrgetter(*_TERMS)(interval)) for interval in terms)
    own = json_rows(dialect, "terms", columns, literal(json_text(rows))).c
    found = select(members.c.namespace, *(own[name] for name in _TERMS))
    return found.where(own.number == members.c.number).cte("dated").prefix_with("MATERIALIZED")
