"""``GET /v1/usage``: charges within a time range, grouped freely, as JSON, CSV or FOCUS rows."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import date
from itertools import chain, islice
from typing import Any, Literal, NotRequired, TypedDict

from flask import Flask, Response, request

from timekeeper.accounts.budget_history import GROUP as GROUP_KEY
from timekeeper.accounts.budget_history import is_group
from timekeeper.accounts.usage import PRICE, PricedCorrection, ReportLine, ReportQuery, columns_of
from timekeeper.api import report_formats, sheets
from timekeeper.api.http.answers import AmountAnswer, Paged, Span, amount_of, tagged
from timekeeper.api.http.parameters import (
    AFTER,
    BESIDE,
    BY,
    FORMAT,
    FROM,
    GROUP,
    LIMIT,
    MONTH,
    SORT,
    SUBJECT_AS_NAMESPACE,
    TO,
    USE,
    ZONE,
    cursor,
    no_cursor,
    shaped,
    start_ms,
)
from timekeeper.api.http.routes import CSV, JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.recent_value import RecentValues, oldest_ms
from timekeeper.api.ledger.seats import YIELD_S, IsWanted, SeatKey
from timekeeper.api.sheets.usage import HOUR_MS
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.ledger.months import ChargeCorrection, Months, months_of
from timekeeper.runtime.http.connection import KEPT_WAITING_S, PATIENCE_S
from timekeeper.runtime.http.problem_details import bad

_Times = TypedDict("_Times", {"from": int, "to": int}, total=False)


class UsageRow(_Times, AmountAnswer):
    """A charge. Columns depend on `group`; `from` and `to` appear if the report is cut by the calendar or has
    several time ranges, `step`, the calendar's name, if it is cut; `requested` to `usedBy` if use was
    requested. `unused`: measured and not used, summed by session and hour. `measured` to `usedBy` are null
    for a time of which no measured use is kept."""

    namespace: NotRequired[str]
    group: NotRequired[str]
    pod: NotRequired[str]
    uid: NotRequired[str]
    owner: NotRequired[str]
    workload: NotRequired[str]
    node: NotRequired[str]
    models: NotRequired[str]
    claim: NotRequired[str]
    classes: NotRequired[str]
    drivers: NotRequired[str]
    devices: NotRequired[str]
    step: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    posted: int
    pending: int
    requested: NotRequired[int]
    measured: NotRequired[int | None]
    used: NotRequired[int | None]
    unused: NotRequired[int | None]
    usedBy: NotRequired[Literal["node", "tenant", "node and tenant"] | None]


class CorrectionAnswer(AmountAnswer):
    """What a person corrected of a bill. `at`: when the wrong charge began; `created`: when it was corrected,
    in whose month it is billed; `pod`, `uid`: empty for none in particular."""

    id: int
    namespace: str
    pod: str
    uid: str
    at: int
    reason: str
    actor: str
    created: int


class Usage(Span, Paged):
    """A report. `clusterName`: of the month of its end, null: none; `total`: the sum of this answer's rows;
    `corrections`: made in its times, by group and price, with its last rows."""

    clusterName: str | None
    rows: list[UsageRow]
    total: AmountAnswer
    corrections: list[CorrectionAnswer]


class FocusUsage(Span, Paged):
    """A report in FOCUS 1.2 rows. `clusterName`: of the month of its end, null: none."""

    clusterName: str | None
    rows: list[dict[str, Any]]


USAGE = ApiRoute(
    path="/v1/usage",
    about="charges, posted and pending, clipped exactly to the time range; without one, this month so far",
    right=Right("get", "usage"),
    answers={JSON: Usage | FocusUsage, CSV: str},
    parameters=(
        FROM,
        TO,
        MONTH,
        BESIDE,
        SUBJECT_AS_NAMESPACE,
        GROUP,
        BY,
        ZONE,
        USE,
        SORT,
        FORMAT,
        LIMIT,
        AFTER,
    ),
    sheet=sheets.USAGE,
    shared_by="",
)
ROUTES = (USAGE,)

_KEPT, _KEPT_ROWS = 16, 1_000  # pages that callers accept though they are not new, and rows of each
_SECOND_MS = 1000
_BEYOND = "\U0010ffff"  # after every text
_Page = tuple[bytes, str | None]  # its body, and where the next one begins
_TYPES = {"json": JSON, "focus": JSON, "csv": f"{CSV}; charset=utf-8", "focus-csv": f"{CSV}; charset=utf-8"}


def register(app: Flask, services: Services) -> None:
    """Add the route."""
    streams, pages = services.report_streams, services.report_pages
    recent = RecentValues[_Page](_KEPT)

    def usage(call: Call) -> Response:
        limit = call.get("limit")
        if limit is None:
            asked = _question(services, call)
            lines = _seated(services.ledger.lines(asked, None), streams.taken(_key(call), asked.cost))
            return _streamed(_form(call), asked, lines, services.ledger.corrections(asked))
        oldest = oldest_ms(request.cache_control.max_age) if limit <= _KEPT_ROWS else 0
        key = tuple(sorted(call.given.items()))
        body, follows = recent.get(key, lambda: page(call, limit), oldest, lambda: seat(call))
        return tagged(Response(body, content_type=_TYPES[_form(call)]), follows)

    def seat(call: Call) -> AbstractContextManager[IsWanted]:
        return pages.taken(_key(call), _question(services, call).cost)

    def page(call: Call, limit: int) -> _Page:
        asked, form = _question(services, call), _form(call)
        most = limit if asked.beside else limit + 1
        lines = list(services.ledger.lines(asked, most))
        has_next = len(lines) > limit and not asked.order and not asked.beside
        lines = lines if asked.beside else lines[:limit]
        follows = _place(asked, lines[limit - 1], _is_focus(call)) if has_next else None
        corrections = [] if follows else services.ledger.corrections(asked)
        return b"".join(_sheet(form, asked, lines, follows, corrections)), follows

    serve(app, services, USAGE, usage)


def _key(call: Call) -> SeatKey:
    """Whose share of the seats the report takes."""
    return SeatKey(call.tenant, call.get("namespace", ""))


def _form(call: Call) -> str:
    return str(call.get("format", "json"))


def _is_focus(call: Call) -> bool:
    return _form(call).startswith("focus")


def _streamed(
    form: str, asked: ReportQuery, lines: Generator[ReportLine], corrections: Sequence[PricedCorrection]
) -> Response:
    """The whole report, sent while it is read, so few lines are in memory. An error before the first line is
    still a Problem."""
    first = list(islice(lines, 1))
    sheet = _sheet(form, asked, chain(first, lines), None, corrections)
    response = Response(sheet, content_type=_TYPES[form])
    response.call_on_close(lines.close)
    return response


def _seated(lines: Generator[ReportLine], seat: AbstractContextManager[IsWanted]) -> Generator[ReportLine]:
    """The lines, read while the report has its seat, which a slow client does not keep from others."""
    with seat as is_wanted, closing(lines):
        try:
            PATIENCE_S.set(lambda: YIELD_S if is_wanted() else KEPT_WAITING_S)
            yield from lines
        finally:
            PATIENCE_S.set(lambda: KEPT_WAITING_S)


def _question(services: Services, call: Call) -> ReportQuery:
    is_focus = _is_focus(call)
    months, history, now_ms = services.ledger.months()
    zone = call.get("timeZone", history.settings(now_ms).time_zone)
    months = months_of(zone) if "timeZone" in call.given else months
    own = [name for name in ("group", "use") if name in call.given]
    if is_focus and own:
        raise bad(own[0], "FOCUS rows have columns of their own")
    columns = report_formats.COLUMNS if is_focus else columns_of(call.get("group", ("namespace",)))
    if call.get("format") == "csv":  # a row for each price
        columns = tuple(dict.fromkeys((*columns, *PRICE)))
    telling = columns[: report_formats.PLACE] if is_focus else columns
    place = shaped(call.get("after"), int, int, int, *(str for _ in telling))
    order = _order(call, is_focus)
    span = _span(call, zone, months, now_ms, is_focus, place)
    step = "" if call.get("by", "all") == "all" else call.get("by")
    subject = call.get("namespace")
    group = subject.removeprefix(GROUP_KEY) if subject and is_group(subject) else ""
    only = None if group else subject
    asked = ReportQuery(
        span=span,
        columns=columns,
        now_ms=now_ms,
        namespace=only,
        group=group,
        step=step or "day" if is_focus else step,
        zone=zone,
        months=months,
        with_use=call.get("use") == "true" or is_focus,
        beside=_beside(call, zone, months, is_focus),
        order=order,
        clusters=history.cluster_names(),
        use_since_ms=_use_since_ms(services, now_ms),
    )
    if asked.has_too_many_steps:
        raise bad("from", f"the time range has more than 10,000 steps of one {asked.step}")
    if place is None:
        return asked
    _, _, step_ms, *key = place
    return replace(asked, after=(step_ms, (*key, *(_BEYOND for _ in columns[len(telling) :]))))


def _use_since_ms(services: Services, now_ms: int) -> int:
    """From when on measured use is kept: of hours that began earlier it is deleted."""
    retain_ms = services.retain_use_ms
    return -(-(now_ms - retain_ms) // HOUR_MS) * HOUR_MS if retain_ms else 0


def _order(call: Call, is_focus: bool) -> str:
    if call.get("sort", "columns") == "columns":
        return ""
    for name in ("after", "by"):
        if call.get(name, "all") != "all":
            raise bad(
                "sort", f"it cannot be combined with {name}: the rows of the whole time range are ordered"
            )
    if is_focus:
        raise bad("sort", "FOCUS rows have an order of their own")
    return str(call.get("sort"))


def _beside(call: Call, zone: str, months: Months, is_focus: bool) -> tuple[Interval, ...]:
    """The further time ranges."""
    given = call.get("beside", ())
    for name in ("after", "by") if given else ():
        if call.get(name, "all") != "all":
            raise bad("beside", f"it cannot be combined with {name}")
    if given and is_focus:
        raise bad("beside", "FOCUS rows have one time range")
    found = tuple(_range(zone, months, *bounds) for bounds in given)
    if not all(each.length_ms for each in found):
        raise bad("beside", "the end of a time range must be after its start")
    return found


def _range(zone: str, months: Months, start: int | date, end: int | date | None) -> Interval:
    if isinstance(start, date) and end is None:
        return months.named(start)
    first_ms = start_ms(start, zone) or 0
    return Interval(first_ms, max(first_ms, start_ms(end, zone) or 0))


def _bounds(call: Call, zone: str, months: Months) -> tuple[int | None, int | None]:
    """The given ends of the time range."""
    month = call.get("month")
    if month is None:
        return start_ms(call.get("from"), zone), start_ms(call.get("to"), zone)
    for name in ("from", "to"):
        if name in call.given:
            raise bad("month", f"it cannot be combined with {name}")
    found = months.named(month)
    return found.start_ms, found.end_ms


def _span(
    call: Call, zone: str, months: Months, now_ms: int, is_focus: bool, place: tuple[Any, ...] | None
) -> Interval:
    """The requested time range, or that of the page before: all pages have the same range. FOCUS' times are
    whole seconds."""
    before = None if place is None else Interval(place[0], place[1])
    start, end = _bounds(call, zone, months)
    rest = before or Interval(months.at(now_ms).start_ms, now_ms)
    exact = _SECOND_MS if is_focus else 1
    start = (rest.start_ms if start is None else start) // exact * exact
    end = (rest.end_ms if end is None else end) // exact * exact
    span = Interval(start, end)
    if before is not None and (span != before or not span.length_ms):
        raise no_cursor("after")
    if not span.length_ms:
        is_about_end = "to" in call.given
        raise bad("to", "it must be after from") if is_about_end else bad("from", "it must be before now")
    return span


def _place(asked: ReportQuery, line: ReportLine, is_focus: bool) -> str:
    key = line.key[: report_formats.PLACE] if is_focus else line.key
    return cursor(asked.span.start_ms, asked.span.end_ms, line.span.start_ms, *key)


def _sheet(
    form: str,
    asked: ReportQuery,
    lines: Iterable[ReportLine],
    follows: str | None,
    corrections: Sequence[PricedCorrection],
) -> Iterator[bytes]:
    """The answer's body, in pieces; corrections stand after the charges."""
    last = asked.months.at(asked.span.end_ms - 1)
    times = {"from": asked.span.start_ms, "to": asked.span.end_ms}
    head = {"version": 1, **times, "clusterName": asked.cluster_of(last) or None}
    if form == "csv":
        charges = (report_formats.csv_cells(asked, each) for each in lines)
        corrected = (report_formats.corrected_cells(asked, each) for each in corrections)
        return report_formats.as_csv(
            report_formats.columns(asked, bool(corrections)), chain(charges, corrected)
        )
    if form.startswith("focus"):
        rows = chain(
            (report_formats.focus_row(asked, each) for each in lines),
            (report_formats.corrected_focus_row(asked, each) for each in corrections),
        )
        if form == "focus-csv":
            return report_formats.as_csv(sheets.FOCUS.keys, rows)
        return report_formats.as_json(head, rows, lambda: {"next": follows})
    added = report_formats.RunningTotal(lines)
    nested = (report_formats.nested(report_formats.cells(asked, each)) for each in added)
    once = {priced.correction.number: priced.correction for priced in corrections}
    corrected_amounts = [correction_answer(once[number]) for number in sorted(once)]
    return report_formats.as_json(
        head,
        nested,
        lambda: {"total": amount_of(added.amount), "corrections": corrected_amounts, "next": follows},
    )


def correction_answer(correction: ChargeCorrection) -> CorrectionAnswer:
    """A correction as it is answered."""
    return {
        "id": correction.number,
        "namespace": correction.namespace,
        "pod": correction.pod,
        "uid": correction.uid,
        "at": correction.at_ms,
        **amount_of(correction.amount),
        "reason": correction.reason,
        "actor": correction.actor,
        "created": correction.created_ms,
    }
