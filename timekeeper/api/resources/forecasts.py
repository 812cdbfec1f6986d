"""``GET /v1/forecast``: when each budget is gone at the present pace, with the band of the last days. ``GET
/v1/estimate``: the 30 days before the ledger, of which nothing is posted, billed or audited: a Prometheus
tells of it, and its answers are kept for a while."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal, TypedDict

import orjson
from flask import Flask, Response

from timekeeper.accounts import estimate as estimating
from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP, is_group
from timekeeper.accounts.card_use.prometheus_answers import PrometheusQueries, Series, read_series
from timekeeper.accounts.decisions.forecasts import DAY_MS, DAYS, Addition, Forecast, Pace, forecast, within
from timekeeper.accounts.estimate import Estimate, EstimatedBudget, EstimatedRow, EstimateQueries, HeldDevices
from timekeeper.accounts.usage import ReportQuery, cost, gpu_hours
from timekeeper.api import report_formats, sheets
from timekeeper.api.http.answers import AmountAnswer, Hours, Paged, Span, Versioned, amount_of, answer, tagged
from timekeeper.api.http.parameters import AFTER, LIMIT, SUBJECT_AS_NAMESPACE, choice, cursor, shaped
from timekeeper.api.http.routes import CSV, JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import AccountReading
from timekeeper.api.ledger.protected_reading import ProtectedReading
from timekeeper.api.resources.budgets import DecidingAnswer, deciding_answer
from timekeeper.core.ledger.metering import FOREVER_MS, Interval, period_at
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.store import ledger

_WITHIN_S = 60.0  # for all questions of one estimate
_KEPT_S = 3_600.0
_FAILED_KEPT_S = 60.0
_SILENT = 2  # failures in a row, after which it is asked no more


@dataclass(slots=True)
class DevicesBefore:
    """The last answers. One caller at a time asks for new ones."""

    prometheus: PrometheusQueries
    _asking: Lock = field(default_factory=Lock)
    _kept: tuple[EstimateQueries, HeldDevices] | None = None
    _until_s: float = 0.0

    def get(self, span: Interval, queries: EstimateQueries) -> HeldDevices:
        """What Prometheus says to these queries, or said in the last hour. Raises a Problem while another
        caller asks it."""
        kept = self._kept
        if kept and (kept[0], kept[1].span) == (queries, span) and time.monotonic() < self._until_s:
            return kept[1]
        if not self._asking.acquire(blocking=False):
            busy = "the estimate is being made; ask again in a minute"
            raise Problem(429, busy, headers={"Retry-After": "10"})
        try:
            held, known, failures = series_of(self.prometheus, span, queries)
            found = estimating.held_devices(span, held, known, failures)
            self._kept = queries, found
            self._until_s = time.monotonic() + (_FAILED_KEPT_S if failures else _KEPT_S)
            return found
        finally:
            self._asking.release()


def series_of(
    prometheus: PrometheusQueries, span: Interval, queries: EstimateQueries
) -> tuple[list[Series], list[Series], list[str]]:
    """The series of all parts of the span, and why there are none of some: those parts are unknown."""
    found: tuple[list[Series], list[Series], list[str]] = ([], [], [])
    until_s, silent = time.monotonic() + _WITHIN_S, 0
    for part in reversed(list(estimating.parts(span))):
        try:
            if silent == _SILENT or time.monotonic() > until_s:
                raise ValueError("Prometheus is not asked about all of the time: it answers too slowly")
            devices = _range(prometheus, queries.held, part)
            found[1].extend(_range(prometheus, queries.known, part))
            found[0].extend(devices)
            silent = 0
        except ValueError as error:
            silent = min(_SILENT, silent + 1)
            found[2].append(str(error))
            prometheus.close()
    return found


def _range(prometheus: PrometheusQueries, query: str, part: Interval) -> list[Series]:
    """The samples at the beginnings of the part's steps. Raises ValueError."""
    step_ms = estimating.STEP_MS
    times = {"start": part.start_ms, "end": part.end_ms - step_ms, "step": step_ms}
    seconds = {name: str(ms // 1000) for name, ms in times.items()}
    body = prometheus.ask("/api/v1/query_range", query=query, **seconds)
    return read_series(orjson.loads(body), "matrix")


class PaceAnswer(TypedDict):
    """`rateMilli`: in thousandths of a weighted GPU; `goneAt`: when the budget is used up at it, null: not in
    this period."""

    rateMilli: int
    goneAt: int | None


class ProtectedPaceAnswer(TypedDict):
    """Of the pods that `protect` selects. `rateMilli`: their rate now, in thousandths of a weighted GPU;
    `usedUpAt`: when a floor of hours is used up at it, null: not in this period, or it is, or the floor is of
    cards."""

    rateMilli: int
    usedUpAt: int | None


class ForecastAnswer(TypedDict):
    """A namespace or group. `remaining`: of its own, null if unlimited; `to`: its period's end, null if it
    has none; `deciding`: the account that says how much may be spent; `now`: at the rate of the pods that
    run; `fastest`, `slowest`: the band, at the largest and smallest of this and of the paces of the last 7
    whole days. Of a namespace `goneAt` is the earlier of its own end and of its group's at the group's pace.
    `protected`: null if the entry protects no pods."""

    namespace: str
    standing: str
    remaining: int | None
    to: int | None
    deciding: DecidingAnswer
    now: PaceAnswer
    fastest: PaceAnswer
    slowest: PaceAnswer
    protected: ProtectedPaceAnswer | None


class ForecastsAnswer(Paged):
    """Namespaces by name; after the last of them all groups."""

    days: int
    forecasts: list[ForecastAnswer]


FORECAST = ApiRoute(
    path="/v1/forecast",
    about="when each budget is gone at the present pace, and the band of the last days",
    right=Right("get", "budgets"),
    answers={JSON: ForecastsAnswer},
    parameters=(SUBJECT_AS_NAMESPACE, LIMIT, AFTER),
)


class EstimateRow(AmountAnswer):
    """What pods of a namespace held of one model ("": not known), estimated. `amount`: weighted, milli-GPU x
    ms; `cost`: at the price of now, null without one."""

    namespace: str
    group: str
    models: str
    price: str
    currency: str
    cost: str | None


class EstimateBudget(TypedDict):
    """What the budget in force now would have had left, estimated. `granted`: its amount for the estimated
    time, in proportion to its period; `left`: negative: over; `spentAt`: when it would have been spent, null:
    not in this time."""

    subject: str
    period: str
    granted: int
    amount: int
    left: int
    leftGpuHours: Hours
    spentAt: int | None


class EstimateAnswer(Span, Versioned):
    """An estimate, no charges. `to`: where the ledger begins; `stepMs`: for how long a sample stands;
    `knownMs`: for how much of the time there are samples, the rest is unknown; `findings`: what is missing
    or left out."""

    estimated: Literal[True]
    stepMs: int
    knownMs: int
    rows: list[EstimateRow]
    budgets: list[EstimateBudget]
    findings: list[str]


ESTIMATE = ApiRoute(
    path="/v1/estimate",
    about="the 30 days before the ledger, estimated from kube-state-metrics in Prometheus; never posted",
    right=Right("get", "usage"),
    answers={JSON: EstimateAnswer, CSV: str},
    parameters=(
        SUBJECT_AS_NAMESPACE,
        choice("format", "of the rows", ("json", "csv")),
        choice("table", "which Table", ("rows", "budgets")),
    ),
    sheet=sheets.ESTIMATE,
    sheets={"budgets": sheets.ESTIMATED_BUDGETS},
)
_NO_PROMETHEUS = "an estimate needs the timekeeper's flag --prometheus-url or --prometheus-namespace"

ROUTES = (FORECAST, ESTIMATE)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""
    before = None if services.prometheus is None else DevicesBefore(services.prometheus)
    serve(app, services, ESTIMATE, lambda call: _estimated(services, before, call))

    def forecasts(call: Call) -> Response:
        subject, after = call.get("namespace", ""), shaped(call.get("after"), str)
        follows = ""
        if subject:
            accounts = [services.ledger.account_now(subject)]
        else:
            accounts, follows = services.ledger.account_page(call.get("limit"), after[0] if after else "")
            accounts += [] if follows else services.ledger.group_accounts()
        page = cursor(follows) if follows else None
        paces = Paces(services, subject)
        found = list(map(paces.of, accounts))
        return answer(ForecastsAnswer(version=1, days=DAYS, forecasts=found, next=page), page)

    serve(app, services, FORECAST, forecasts)


class Paces:
    """The rates now and the charges of the last days, by namespace and by group: of all, or of a namespace
    and its group, or of a group."""

    def __init__(self, services: Services, subject: str) -> None:
        zone, self._now_ms = services.ledger.calendar()
        namespace = subject if subject and not is_group(subject) else None
        with services.ledger.store.reading() as connection:
            history = services.ledger.history(connection)
            group = history.group(namespace, self._now_ms) if namespace else subject.removeprefix(GROUP)
            names: tuple[str, ...] | None = (namespace,) if namespace else None
            if group:
                listed = ledger.namespaces(connection)
                names = tuple(name for name in listed if history.group(name, self._now_ms) == group)
            self._rates: dict[str, int] = defaultdict(int, ledger.open_rates(connection, names))
        for name, rate in list(self._rates.items()):
            if theirs := history.group(name, self._now_ms):
                self._rates[GROUP + theirs] += rate
        today_ms = period_at("day", zone, self._now_ms).start_ms
        first_ms = period_at("day", zone, today_ms - DAYS * DAY_MS + DAY_MS // 2).start_ms
        asked = ReportQuery(
            span=Interval(first_ms, today_ms),
            columns=("namespace",),
            now_ms=self._now_ms,
            namespace=namespace,
            step="day",
            zone=zone,
        )
        self._days: dict[str, Mapping[int, int]] = {}
        if not is_group(subject):
            self._days |= _days(services, asked, "")
        if group or namespace is None:
            of_group = replace(asked, namespace=None, columns=("group",), group=group)
            self._days |= _days(services, of_group, GROUP)

    def of(self, account: AccountReading, additions: Sequence[Addition] = ()) -> ForecastAnswer:
        """The account's forecast. ``additions``: pods that are supposed beside those that there are."""
        statement, name = account.statement, account.namespace
        found = self._forecast(name, statement, additions)
        if statement.group is not None:
            group = GROUP + statement.in_force.budget.group
            found = within(found, self._forecast(group, statement.group, additions))
        ends_ms = statement.ends_ms
        return {
            "namespace": name,
            "standing": account.standing,
            "remaining": statement.balance.remaining,
            "to": None if ends_ms >= FOREVER_MS else ends_ms,
            "deciding": deciding_answer(account),
            "now": _shown(found.now),
            "fastest": _shown(found.fastest),
            "slowest": _shown(found.slowest),
            "protected": _protected(account.protected, self._now_ms),
        }

    def _forecast(self, name: str, statement: Statement, additions: Sequence[Addition]) -> Forecast:
        """Of one account alone."""
        charged = self._days.get(name, {})
        days = [*charged.values(), *([0] * (DAYS - len(charged)))]
        remaining, ends_ms = statement.balance.remaining, statement.ends_ms
        return forecast(remaining, self._rates[name], days, self._now_ms, additions, ends_ms)


def _days(services: Services, asked: ReportQuery, prefix: str) -> dict[str, Mapping[int, int]]:
    """Key -> beginning of the day -> charge, posted and pending."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for line in services.ledger.lines(asked, None):
        found[prefix + line.key[0]][line.span.start_ms] = int(line.sums.posted + line.sums.pending)
    return dict(found)


def _protected(reading: ProtectedReading | None, now_ms: int) -> ProtectedPaceAnswer | None:
    if reading is None:
        return None
    return {"rateMilli": reading.rate_milli, "usedUpAt": reading.used_up_ms(now_ms)}


def _shown(pace: Pace) -> PaceAnswer:
    return {"rateMilli": pace.milli, "goneAt": pace.gone_ms}


def _estimated(services: Services, before: DevicesBefore | None, call: Call) -> Response:
    with services.ledger.store.reading() as connection:
        now_ms, history = services.ledger.moment(connection)
    first_ms = services.ledger.began_ms()
    span = estimating.span_before(now_ms if first_ms is None else first_ms)
    devices = HeldDevices(span, {}, frozenset(), (_NO_PROMETHEUS,))
    if before is not None:
        devices = before.get(span, estimating.queries(history.settings(now_ms)))
    found = _scoped(estimating.estimate(devices, history, now_ms), call.get("namespace", ""))
    if call.get("format") == "csv":
        sheet = report_formats.as_csv(sheets.ESTIMATE.keys, (_csv(found, each) for each in found.rows))
        return tagged(Response(b"".join(sheet), content_type=f"{CSV}; charset=utf-8"))
    return answer(_estimate_answer(found))


def _scoped(found: Estimate, subject: str) -> Estimate:
    """What concerns a namespace, or a group by its key; "": all."""
    if not subject:
        return found
    group = subject.removeprefix(GROUP) if is_group(subject) else ""

    def concerns(row: EstimatedRow) -> bool:
        return row.group == group if group else row.namespace == subject

    rows = tuple(filter(concerns, found.rows))
    return replace(found, rows=rows, budgets=tuple(each for each in found.budgets if each.subject == subject))


def _estimate_answer(found: Estimate) -> EstimateAnswer:
    return {
        "version": 1,
        "estimated": True,
        "from": found.span.start_ms,
        "to": found.span.end_ms,
        "stepMs": estimating.STEP_MS,
        "knownMs": found.known_ms,
        "rows": list(map(_estimate_row, found.rows)),
        "budgets": list(map(_estimate_budget, found.budgets)),
        "findings": list(found.findings),
    }


def _estimate_row(row: EstimatedRow) -> EstimateRow:
    return {
        "namespace": row.namespace,
        "group": row.group,
        "models": row.models,
        **amount_of(row.amount),
        "price": row.price,
        "currency": row.currency,
        "cost": cost(row.amount, row.price) if row.price else None,
    }


def _estimate_budget(budget: EstimatedBudget) -> EstimateBudget:
    return {
        "subject": budget.subject,
        "period": budget.period,
        "granted": budget.granted,
        "amount": budget.amount,
        "left": budget.left,
        "leftGpuHours": gpu_hours(budget.left),
        "spentAt": budget.spent_ms,
    }


def _csv(found: Estimate, row: EstimatedRow) -> dict[str, Any]:
    whole_ms = found.span.length_ms
    known = f"{100 * found.known_ms // whole_ms}%" if whole_ms else ""
    times = {"from": report_formats.iso(found.span.start_ms), "to": report_formats.iso(found.span.end_ms)}
    cells = _estimate_row(row) | {"cost": cost(row.amount, row.price) if row.price else ""}
    return {"estimated": "estimated", "known": known, **times, **cells}
