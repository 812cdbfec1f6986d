"""``GET /v1/estimate``: the 30 days before the ledger, estimated from what a Prometheus has of
kube-state-metrics. Nothing of it is posted, billed or audited."""

import time
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal, TypedDict

import orjson
from flask import Flask, Response

from timekeeper.accounts import estimate as estimating
from timekeeper.accounts.budget_history import GROUP, History, is_group
from timekeeper.accounts.estimate import Estimate, EstimatedBudget, EstimatedRow, HeldDevices
from timekeeper.accounts.prometheus_answers import Series, read_series
from timekeeper.accounts.usage import cost, gpu_hours
from timekeeper.api import report_formats
from timekeeper.api.http.answers import Hours, answer, tagged
from timekeeper.api.http.parameters import SUBJECT_AS_NAMESPACE, choice
from timekeeper.api.http.routes import CSV, JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Asked, Services
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.wire import Version
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.store import ledger

_WITHIN_S = 60.0  # for all questions of one estimate
_KEPT_S = 3_600.0
_FAILED_KEPT_S = 60.0
_SILENT = 2  # failures in a row, after which it is asked no more


class EstimateRow(TypedDict):
    """What pods of a namespace held of one model ("": not known), estimated. `amount`: weighted, milli-GPU x
    ms; `cost`: at the price of now, null without one."""

    namespace: str
    group: str
    models: str
    amount: int
    gpuHours: Hours
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


_From = TypedDict("_From", {"from": int})


class EstimateAnswer(_From):
    """An estimate, no charges. `to`: where the ledger begins; `stepMs`: for how long a sample stands;
    `knownMs`: for how much of the time there are samples, the rest is unknown; `findings`: what is missing
    or left out."""

    version: Version
    estimated: Literal[True]
    to: int
    stepMs: int
    knownMs: int
    rows: list[EstimateRow]
    budgets: list[EstimateBudget]
    findings: list[str]


ESTIMATE = ApiRoute(
    "GET",
    "/v1/estimate",
    "the 30 days before the ledger, estimated from kube-state-metrics in Prometheus; never posted",
    Right("get", "usage"),
    {JSON: EstimateAnswer, CSV: str},
    (SUBJECT_AS_NAMESPACE, choice("format", "of the rows", ("json", "csv"))),
)
ROUTES = (ESTIMATE,)
_UNCONFIGURED = "an estimate needs the timekeeper's flag --prometheus-url or --prometheus-namespace"
_COLUMNS = (
    "estimated",
    "from",
    "to",
    "known",
    "namespace",
    "group",
    "models",
    "amount",
    "gpuHours",
    "price",
    "currency",
    "cost",
)


@dataclass(slots=True)
class _Kept:
    """The last answers of Prometheus, for some time. ``asking``: held by the one caller that asks it."""

    asking: Lock = field(default_factory=Lock)
    devices: HeldDevices | None = None
    until_s: float = 0.0


def register(app: Flask, services: Services) -> None:
    """Add the route."""
    kept = _Kept()

    def of(call: Call) -> Response:
        prometheus = services.prometheus
        if prometheus is None:
            raise Problem(503, _UNCONFIGURED)
        with services.ledger.store.reading() as connection:
            now_ms, history = services.ledger.moment(connection)
            first_ms = ledger.first_ms(connection)
        span = estimating.span_before(now_ms if first_ms is None else first_ms)
        devices = _devices(kept, prometheus, span, history, now_ms)
        found = _scoped(estimating.estimate(devices, history, now_ms), call.get("namespace", ""))
        if call.get("format") == "csv":
            sheet = report_formats.as_csv(_COLUMNS, (_csv(found, each) for each in found.rows))
            return tagged(Response(b"".join(sheet), content_type=f"{CSV}; charset=utf-8"))
        return answer(_answer(found))

    serve(app, services, ESTIMATE, of)


def _devices(kept: _Kept, prometheus: Asked, span: Interval, history: History, now_ms: int) -> HeldDevices:
    """What Prometheus says, or said lately. Raises a Problem while another caller asks it."""
    known = kept.devices
    if known is not None and known.span == span and time.monotonic() < kept.until_s:
        return known
    if not kept.asking.acquire(blocking=False):
        raise Problem(429, "the estimate is being made; ask again in a minute", headers={"Retry-After": "10"})
    try:
        queries = estimating.queries(history.settings(now_ms))
        held, known_at, failures = series_of(prometheus, span, queries.held, queries.known)
        kept.devices = estimating.held_devices(span, held, known_at, failures)
        kept.until_s = time.monotonic() + (_FAILED_KEPT_S if failures else _KEPT_S)
        return kept.devices
    finally:
        kept.asking.release()


def series_of(
    prometheus: Asked, span: Interval, held: str, known: str
) -> tuple[list[Series], list[Series], list[str]]:
    """The series of all parts of the span, and why there are none of some: those parts are unknown."""
    found: tuple[list[Series], list[Series], list[str]] = ([], [], [])
    until_s, silent = time.monotonic() + _WITHIN_S, 0
    for part in reversed(list(estimating.parts(span))):
        try:
            if silent == _SILENT or time.monotonic() > until_s:
                raise ValueError("Prometheus is not asked about all of the time: it answers too slowly")
            devices = _range(prometheus, held, part)
            found[1].extend(_range(prometheus, known, part))
            found[0].extend(devices)
            silent = 0
        except ValueError as error:
            silent = min(_SILENT, silent + 1)
            found[2].append(str(error))
            prometheus.close()
    return found


def _range(prometheus: Asked, query: str, part: Interval) -> list[Series]:
    """The samples at the beginnings of the part's steps. Raises ValueError."""
    step_ms = estimating.STEP_MS
    times = {"start": part.start_ms, "end": part.end_ms - step_ms, "step": step_ms}
    seconds = {name: str(ms // 1000) for name, ms in times.items()}
    body = prometheus.ask("/api/v1/query_range", query=query, **seconds)
    return read_series(orjson.loads(body), "matrix")


def _scoped(found: Estimate, subject: str) -> Estimate:
    """What concerns a namespace, or a group by its key; "": all."""
    if not subject:
        return found
    group = subject.removeprefix(GROUP) if is_group(subject) else ""

    def concerns(row: EstimatedRow) -> bool:
        return row.group == group if group else row.namespace == subject

    rows = tuple(filter(concerns, found.rows))
    return replace(found, rows=rows, budgets=tuple(each for each in found.budgets if each.subject == subject))


def _answer(found: Estimate) -> dict[str, Any]:
    return {
        "version": 1,
        "estimated": True,
        "from": found.span.start_ms,
        "to": found.span.end_ms,
        "stepMs": estimating.STEP_MS,
        "knownMs": found.known_ms,
        "rows": list(map(_row, found.rows)),
        "budgets": list(map(_budget, found.budgets)),
        "findings": list(found.findings),
    }


def _row(row: EstimatedRow) -> dict[str, Any]:
    return {
        "namespace": row.namespace,
        "group": row.group,
        "models": row.models,
        "amount": row.amount,
        "gpuHours": gpu_hours(row.amount),
        "price": row.price,
        "currency": row.currency,
        "cost": cost(row.amount, row.price) if row.price else None,
    }


def _budget(budget: EstimatedBudget) -> dict[str, Any]:
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
    cells = _row(row) | {"cost": cost(row.amount, row.price) if row.price else ""}
    return {"estimated": "estimated", "known": known, **times, **cells}
