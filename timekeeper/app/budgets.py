"""``GET /v1/budgets`` and ``/v1/budgets/<namespace>``: what was granted, spent, and is left."""

from typing import Any

import orjson
from flask import Flask, Response, request

from timekeeper.accounts.usage import gpu_hours
from timekeeper.app.bodies import read_namespace, read_parameters
from timekeeper.app.ledger import Told
from timekeeper.app.services import Services
from timekeeper.core.ledger import FOREVER_MS
from timekeeper.core.policy import not_built


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.get("/v1/budgets")
    def budgets() -> Response:
        services.gate.allow(request.headers.get("Authorization"), "get", "budgets")
        read_parameters(request.args.to_dict(flat=False), {})
        return _json({"version": 1, "budgets": [shown(told) for told in services.ledger.all_told()]})

    @app.get("/v1/budgets/<namespace>")
    def budget(namespace: str) -> Response:
        read_namespace(namespace)
        services.gate.allow(request.headers.get("Authorization"), "get", "budgets", namespace)
        read_parameters(request.args.to_dict(flat=False), {})
        return _json({"version": 1, **shown(services.ledger.told(namespace))})


def shown(told: Told) -> dict[str, Any]:
    """One account: amounts in milli-GPU x milliseconds, and again as decimal GPU-hours; times in
    milliseconds."""
    statement = told.statement
    in_force, balance, account = statement.in_force, statement.balance, statement.account
    budget = in_force.budget
    amounts = {
        "granted": balance.granted,
        "posted": balance.posted,
        "pending": balance.pending,
        "reserved": balance.reserved,
        "remaining": balance.remaining,
    }
    return {
        "namespace": told.namespace,
        "standing": balance.standing,
        "entry": in_force.key or None,
        "onExhausted": budget.on_exhausted,
        "ratio": balance.ratio_milli,
        "warnAt": budget.warn_at_milli,
        "period": {
            "kind": account.kind if budget.amount is not None else None,
            "timeZone": account.zone,
            "from": account.span.start_ms,
            "to": None if account.span.end_ms >= FOREVER_MS else account.span.end_ms,
        },
        **amounts,
        "gpuHours": {name: None if each is None else gpu_hours(each) for name, each in amounts.items()},
        "validUntil": statement.valid_until_ms,
        "warnings": list(not_built(budget)),
        "lastError": told.error or None,
    }


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), content_type="application/json")
