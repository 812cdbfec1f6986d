"""The selects whose union is a usage report: charges, what open sessions owe beyond them, and measured use.
`timekeeper.store.reports.reports` adds them up.

Every part is clipped to one time range. If the report needs a session's columns, rows are first summed by
session, so each session is looked up once and not once per row. If day totals suffice, a part has a sum for
each namespace; a price is then looked up once a namespace.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
    true,
)

from timekeeper.accounts.usage import BY_DEVICE, CLAIMED, DATED, LABEL, ReportQuery
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.store.engine.schema import DAYS, FIGURES, FOLDED, HOUR_MS, POSTINGS, SESSIONS
from timekeeper.store.engine.workloads import label_of, workload
from timekeeper.store.reports.columns import (
    DeviceRows,
    claimed,
    device_rows,
    of_namespaces,
    without_index,
)
from timekeeper.store.reports.shape import Shape, Span, Stretch, needs_sessions, sums_in
from timekeeper.store.sessions import IS_OPEN, greatest, least, open_charges, owed, shown_uid

_ATTRIBUTES = {"pod": "name", "owner": "owner", "node": "node", "models": "models"}
# what `CLAIMED`, the UID, and the workload are read from
_OF_CLAIMS = ("kind", "name", "devices", "rate_milli", "requested_milli")
_OF_UID = ("kind", "owner_uid")
_OF_WORKLOAD = ("owner", "labels")
_EARLIEST, _LATEST = (bindparam(name, type_=BigInteger) for name in ("earliest", "latest"))
_MEASURED = ("covered", "used", "unused", "by_node", "by_tenant")

Expression = ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class _Clip:
    """The part of a row's time inside the stretch and inside its price interval."""

    length: Expression
    meets: tuple[Expression, ...]


@dataclass(frozen=True)
class Parts:
    """All parts of a report of this shape."""

    dialect: str
    asked: ReportQuery
    dated: CTE
    shape: Shape

    def all(self) -> list[Select[Any]]:
        """Each has the report's columns and `sums_in`; of day totals number, namespace and these sums."""
        spans = [Span(number) for number in range(self.shape.spans)]
        return self._by_day(spans) if self.shape.by_day else self._by_row(spans[0])

    def _by_day(self, spans: list[Span]) -> list[Select[Any]]:
        owes, parts = self._owed(), []
        for span in spans:
            days = self._select(DAYS, {"posted": DAYS.c.amount}, DAYS, span)
            days = days.where(DAYS.c.day_ms >= span.first, DAYS.c.day_ms < span.last)
            parts.append(self._narrow(days, DAYS, span))
            for edge in (span.head, span.tail):
                parts += [self._charges(rows, "posted", span, edge) for rows in (POSTINGS, FOLDED)]
            parts.append(self._charges(owes, "pending", span, span.whole))
        return parts

    def _by_row(self, span: Span) -> list[Select[Any]]:
        if needs_sessions(self.asked):
            parts = [self._by_session(span), self._charges(self._open(), "pending", span, span.whole)]
        else:
            parts = [self._charges(POSTINGS, "posted", span, span.whole)]
            parts.append(self._charges(self._owed(), "pending", span, span.whole))
        parts.append(self._charges(FOLDED, "posted", span, span.whole))
        return [*parts, *self._figures(span)] if self.asked.with_use else parts

    # Which charges

    def _owed(self) -> CTE:
        return owed(_EARLIEST, _LATEST, *self._theirs())

    def _open(self) -> CTE:
        """The charges of open sessions, with the columns that the report needs of them."""
        own = (column for column in self.asked.columns if column not in (*DATED, *CLAIMED, "workload"))
        named = {"labels" if each.startswith(LABEL) else _ATTRIBUTES.get(each, each) for each in own}
        names = {"requested_milli", *named, *self._read_from} - {"namespace", "rate_milli"}
        found = open_charges(sorted(names), SESSIONS.c.rate_milli > 0, *self._theirs())
        return found.cte("open").prefix_with("MATERIALIZED")

    def _theirs(self) -> tuple[Expression, ...]:
        """The conditions for sessions; evidence is read of none that is bound later."""
        return (SESSIONS.c.bound_ms < _LATEST, *self._of_namespaces(SESSIONS.c.namespace, "some"))

    def _charges(self, rows: FromClause, name: str, span: Span, stretch: Stretch) -> Select[Any]:
        """``rows``: charges of any kind; ``name``: the sum that they are of."""
        clip = self._clip_of(rows, stretch)
        sums = {name: rows.c.rate_milli * clip.length}
        if "requested_milli" in rows.c:
            sums["requested"] = rows.c.requested_milli * clip.length
        return self._narrow(self._select(rows, sums, rows, span).where(*clip.meets), rows, span)

    def _by_session(self, span: Span) -> Select[Any]:
        """Postings with the columns of their sessions. What is posted of open ones is taken back here, for of
        them `_open` has the whole charge; `owed` would read the postings again."""
        clip = self._clip_of(POSTINGS, span.whole)
        amount = cast(func.sum(POSTINGS.c.rate_milli * clip.length), BigInteger).label("amount")
        source = self._with_terms(POSTINGS, POSTINGS, self.shape.is_cut, span)
        since = [self.dated.c.from_ms.label("since")] if self.shape.is_cut else []
        keys = [self._without_index(POSTINGS.c.session_uid), *since]
        sums = select(*keys, amount).select_from(source).where(*clip.meets).group_by(*keys)
        charged = self._narrow(sums, POSTINGS, span).subquery("charged")
        requested = charged.c.amount / SESSIONS.c.rate_milli * SESSIONS.c.requested_milli
        amounts = {
            "posted": charged.c.amount,
            "pending": case((IS_OPEN, -charged.c.amount), else_=0),
            "requested": case((IS_OPEN, 0), else_=requested),
        }
        both = charged.join(SESSIONS, SESSIONS.c.uid == charged.c.session_uid)
        found = self._select(SESSIONS, amounts, both, span)
        return found.where(self.dated.c.from_ms == charged.c.since) if self.shape.is_cut else found

    # Measured use

    def _figures(self, span: Span) -> list[Select[Any]]:
        """Measured use of the hours that begin in the range, of present and rolled-up sessions: each begins
        when its session's charge does at the earliest, and is over with it."""
        measured = self._by_word(span)
        names = ["namespace", "name", "owner", "node", "models", "labels", "requested_milli"]
        names += [each for each in self._read_from if each not in names]
        once = (func.min(FOLDED.c[name]).label(name) for name in names)
        both = measured.join(FOLDED, FOLDED.c.session_uid == measured.c.session_uid)
        theirs = self._narrow(select(*measured.c, *once).select_from(both), FOLDED, span)
        gone = theirs.group_by(*measured.c).subquery("gone")
        its = SESSIONS.join(measured, SESSIONS.c.uid == measured.c.session_uid)
        return [self._used(SESSIONS, measured, its, span), self._used(gone, gone, gone, span)]

    def _used(self, rows: FromClause, measured: FromClause, source: FromClause, span: Span) -> Select[Any]:
        sums = {
            "measured": measured.c.covered * rows.c.requested_milli,
            "used": measured.c.used,
            "unused": measured.c.unused,
            "by_node_ms": measured.c.by_node,
            "by_tenant_ms": measured.c.by_tenant,
        }
        found = self._narrow(self._select(rows, sums, source, span), rows, span)
        if not self.shape.is_cut:
            return found
        # an hour belongs to the price interval in which it begins
        return found.where(*self._clip(measured.c.at_ms, measured.c.at_ms + 1, span.whole).meets)

    def _by_word(self, span: Span) -> CTE:
        """By session, and by hour if needed: the node agent's figures take precedence over the tenant's. What
        is unused is summed from the hours, for a session may use more than its part in one of them."""
        node = FIGURES.alias("by_node")
        same = and_(node.c.session_uid == FIGURES.c.session_uid, node.c.hour_ms == FIGURES.c.hour_ms)
        is_node = FIGURES.c.source == "node"
        is_best = ~exists().where(same, node.c.source == "node")
        hour_ms, own = self._its(FIGURES.c.hour_ms), self._own_times(span)
        at_ms = greatest(least(FIGURES.c.hour_ms, own.c.end_ms - 1), own.c.start_ms)
        which = and_(_is_near(hour_ms, span), span.has(at_ms), or_(is_node, is_best))
        keys = [self._its(FIGURES.c.session_uid), *([at_ms.label("at_ms")] if self.shape.is_cut else [])]
        unused = FIGURES.c.covered_ms * own.c.requested_milli - FIGURES.c.used_milli_ms
        values = (
            FIGURES.c.covered_ms,
            FIGURES.c.used_milli_ms,
            greatest(unused, literal(0)),
            case((is_node, FIGURES.c.covered_ms), else_=0),
            case((is_node, 0), else_=FIGURES.c.covered_ms),
        )
        sums = (
            cast(func.sum(value), BigInteger).label(name)
            for name, value in zip(_MEASURED, values, strict=True)
        )
        both = FIGURES.join(own, own.c.session_uid == FIGURES.c.session_uid)
        return select(*keys, *sums).select_from(both).where(which).group_by(*keys).cte("measured")

    def _own_times(self, span: Span) -> CTE:
        """The sessions with figures near the range: what each requested, and its charged time, in which what
        is posted of a settled one, or kept of a rolled-up one, is one interval at its rate."""
        near = select(FIGURES.c.session_uid).where(_is_near(self._its(FIGURES.c.hour_ms), span)).distinct()
        if self.shape.is_some or self.asked.namespace is not None:
            of_sessions = self._narrow(select(SESSIONS.c.uid), SESSIONS, span)
            theirs = of_sessions.union_all(self._narrow(select(FOLDED.c.session_uid), FOLDED, span))
            near = near.where(FIGURES.c.session_uid.in_(theirs))
        uid, its, own, old = near.subquery("near").c.session_uid, POSTINGS.c, SESSIONS.c, FOLDED.c
        length = cast(func.sum(its.amount), BigInteger) / func.max(its.rate_milli)
        first, end = (
            select(time).where(its.session_uid == uid).correlate(uid.table).scalar_subquery()
            for time in (func.min(its.from_ms), func.min(its.from_ms) + length)
        )
        found = {
            "requested_milli": (own.requested_milli, func.min(old.requested_milli)),
            "start_ms": (func.coalesce(first, own.bound_ms), func.min(old.from_ms)),
            "end_ms": (
                case((own.settled_ms.is_not(None), end), else_=literal(FOREVER_MS, BigInteger)),
                func.max(old.to_ms + 0),
            ),
        }
        columns = (
            func.coalesce(
                select(present).where(own.uid == uid).correlate(uid.table).scalar_subquery(),
                select(gone).where(old.session_uid == uid).correlate(uid.table).scalar_subquery(),
                0,
            ).label(name)
            for name, (present, gone) in found.items()
        )
        return select(uid, *columns).cte("own").prefix_with("MATERIALIZED")

    # With which columns

    def _select(
        self, rows: FromClause, sums: Mapping[str, Expression], source: FromClause, span: Span
    ) -> Select[Any]:
        asked = {name: sums.get(name, literal(0)) for name in sums_in(self.shape)}
        if self.shape.by_day:
            totals = [cast(func.sum(each), BigInteger).label(name) for name, each in asked.items()]
            number, namespace = literal(span.number).label("number"), rows.c.namespace
            # rows are found by their time, and few of them are sorted
            by = namespace if rows is DAYS else self._without_index(namespace)
            return select(number, namespace, *totals).select_from(source).group_by(by)
        devices = device_rows(self.dialect, rows.c) if self._is_split else None
        if devices is not None:
            asked = {name: devices.part(name, each, rows.c) for name, each in asked.items()}
        keys = [self._key(rows, name, devices).label(name) for name in self.asked.columns]
        amounts = [cast(each, BigInteger).label(name) for name, each in asked.items()]
        every = self._with_terms(source, rows, self._needs_terms, span)
        if devices is not None:
            every = every.outerjoin(devices.table, true())
        return select(*keys, *amounts).select_from(every)

    @property
    def _needs_terms(self) -> bool:
        """Whether rows must be joined with price intervals. A group whose namespaces were in it throughout
        the time range is `Shape.is_some`, and its name is no column of theirs."""
        named = {"group"} if self.asked.group else set()
        return self.shape.is_cut or bool((set(DATED) - named) & set(self.asked.columns))

    @property
    def _read_from(self) -> Iterable[str]:
        """What columns are read from that no table has."""
        of_claims = () if {*CLAIMED}.isdisjoint(self.asked.columns) else _OF_CLAIMS
        of_uid = _OF_UID if "uid" in self.asked.columns else ()
        return dict.fromkeys(
            (*of_claims, *of_uid, *(_OF_WORKLOAD if "workload" in self.asked.columns else ()))
        )

    @property
    def _is_split(self) -> bool:
        """Whether a claim's devices have a row each; they have one together beside its session."""
        return "uid" not in self.asked.columns and not {*BY_DEVICE}.isdisjoint(self.asked.columns)

    def _with_terms(self, source: FromClause, rows: FromClause, has_dated: bool, span: Span) -> FromClause:
        if not has_dated:
            return source
        own = self.dated.c
        meets = and_(own.from_ms < span.end, own.to_ms > span.start)
        # SQLite compares each interval with each row unless the rows come first; a row without an interval is
        # then in no `_Clip`, whose bounds are NULL
        is_first = self.dialect == "sqlite" and self.shape.is_cut
        theirs = own.namespace == self._its(rows.c.namespace)
        return source.join(self.dated, and_(theirs, meets), isouter=is_first)

    def _key(self, rows: FromClause, name: str, devices: DeviceRows | None) -> Expression:
        if name.startswith(LABEL):
            return label_of(self.dialect, rows.c.labels, name.removeprefix(LABEL))
        if name == "group" and self.asked.group:
            return literal(self.asked.group, Text)
        if name in DATED:
            return self.dated.c[name]
        if name in BY_DEVICE and devices is not None:
            return devices.text(rows.c, name)
        if name in CLAIMED:
            return claimed(self.dialect, rows.c, name)
        if name == "workload":
            return workload(self.dialect, rows.c)
        if name == "uid":
            return shown_uid(rows.c, rows.c.uid if "uid" in rows.c else rows.c.session_uid)
        return rows.c[_ATTRIBUTES.get(name, name)]

    def _clip_of(self, rows: FromClause, stretch: Stretch) -> _Clip:
        """The same of a row of charges; tables are read by index for the stretch's days alone."""
        end = self._its(rows.c.to_ms) if stretch.is_whole else rows.c.to_ms
        clip = self._clip(rows.c.from_ms, end, stretch)
        if isinstance(rows, Table):
            return replace(clip, meets=(*clip.meets, self._its(rows.c.to_ms) <= stretch.end_day))
        return clip

    def _clip(self, start: Expression, end: Expression, stretch: Stretch) -> _Clip:
        """The part of a row's time inside the stretch and inside its price interval."""
        lower, upper = stretch.start, stretch.end
        meets: tuple[Expression, ...] = (end > lower, start < upper)
        if self.shape.is_cut:
            lower, upper = greatest(lower, self.dated.c.from_ms), least(upper, self.dated.c.to_ms)
            meets = (*meets, end > lower, start < upper)
        return _Clip(least(end, upper) - greatest(start, lower), meets)

    # Of which rows

    def _narrow(self, found: Select[Any], rows: FromClause, span: Span) -> Select[Any]:
        """Only some namespaces' rows."""
        return found.where(*self._of_namespaces(rows.c.namespace, f"some_{span.number}"))

    def _of_namespaces(self, namespace: Expression, name: str = "some_0") -> list[Expression]:
        """The conditions for only some namespaces' rows."""
        return of_namespaces(
            self.dialect, namespace, self.asked.namespace, name if self.shape.is_some else ""
        )

    def _its(self, found: Expression) -> Expression:
        """The column, for a table that SQLite scans."""
        table = getattr(found, "table", None)
        is_passed = isinstance(table, Table) and table.name in self.shape.passed
        return self._without_index(found) if is_passed else found

    def _without_index(self, found: Expression) -> Expression:
        return without_index(self.dialect, found)


def _is_near(hour_ms: Expression, span: Span) -> Expression:
    """Whether an hour may begin in the range by its session's own time."""
    hour = literal(HOUR_MS, BigInteger)
    return and_(hour_ms > span.start - hour, hour_ms < span.end + hour)
