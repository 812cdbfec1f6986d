"""``GET /v1/usage``: what was charged in a span of time, by namespace or by pod, as JSON or CSV."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from flask import Flask, Response, request

from timekeeper.accounts.usage import Row, gpu_hours
from timekeeper.app.bodies import read_namespace, read_parameters, read_time
from timekeeper.app.problem import bad
from timekeeper.app.services import Services
from timekeeper.core.ledger import Interval, period_at

_PARAMETERS = {
    "from": (),
    "to": (),
    "namespace": (),
    "group": ("namespace", "pod"),
    "format": ("json", "csv"),
}
_BY_NAMESPACE = ("namespace",)
_BY_POD = ("namespace", "pod", "uid", "owner", "node", "models")
_AMOUNTS = ("posted", "pending", "amount", "gpuHours")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    @app.get("/v1/usage")
    def usage() -> Response:
        services.gate.caller(request.headers.get("Authorization"))
        given = read_parameters(request.args.to_dict(flat=False), _PARAMETERS)
        namespace = read_namespace(given["namespace"]) if "namespace" in given else None
        services.gate.allow(request.headers.get("Authorization"), "get", "usage", namespace or "")
        span = _span(services, given)
        by_pod = given.get("group") == "pod"
        rows = services.ledger.usage(span, namespace, by_pod)
        columns = _BY_POD if by_pod else _BY_NAMESPACE
        if given.get("format") == "csv":
            return Response(_csv(rows, columns), content_type="text/csv; charset=utf-8")
        return _json(span, rows, columns)


def _span(services: Services, given: Mapping[str, str]) -> Interval:
    """``from`` and ``to``; without them, this month so far in the budgets' time zone."""
    now_ms = services.clock()
    start_ms = read_time("from", given["from"]) if "from" in given else _month_start_ms(services, now_ms)
    end_ms = read_time("to", given["to"]) if "to" in given else now_ms
    if start_ms >= end_ms:
        raise bad("to", "it must be after from")
    return Interval(start_ms, end_ms)


def _month_start_ms(services: Services, now_ms: int) -> int:
    with services.ledger.store.reading() as connection:
        zone = services.ledger.history(connection).settings(now_ms).time_zone
    return period_at("month", zone, now_ms).start_ms


def _cells(row: Row, columns: Iterable[str]) -> dict[str, Any]:
    return {
        **{column: getattr(row.who, column) for column in columns},
        "posted": row.posted,
        "pending": row.pending,
        "amount": row.amount,
        "gpuHours": gpu_hours(row.amount),
    }


def _json(span: Interval, rows: tuple[Row, ...], columns: tuple[str, ...]) -> Response:
    total = sum(row.amount for row in rows)
    body = {
        "version": 1,
        "from": span.start_ms,
        "to": span.end_ms,
        "total": {"amount": total, "gpuHours": gpu_hours(total)},
        "rows": [_cells(row, columns) for row in rows],
    }
    return Response(orjson.dumps(body), content_type="application/json")


def _csv(rows: tuple[Row, ...], columns: tuple[str, ...]) -> str:
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow((*columns, *_AMOUNTS))
    for row in rows:
        cells = _cells(row, columns)
        writer.writerow([*(safe(cells[name]) for name in columns), *(cells[name] for name in _AMOUNTS)])
    return sheet.getvalue()


def safe(text: str) -> str:
    """A text that a spreadsheet shows and does not calculate: what begins like a formula gets an
    apostrophe."""
    return f"'{text}" if text.startswith(_FORMULA) else text
