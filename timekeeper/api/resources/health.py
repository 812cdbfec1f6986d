"""``/livez`` and ``/readyz`` for the kubelet, without a token, and ``/metrics`` for Prometheus."""

from collections.abc import Mapping

import msgspec
from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST

from timekeeper import metrics
from timekeeper.accounts.changes import NEVER, Pulse
from timekeeper.accounts.failing_watches import read_watches
from timekeeper.api.http.routes import ApiRoute
from timekeeper.api.http.services import Services
from timekeeper.core.findings import counted
from timekeeper.core.texts import moment
from timekeeper.store import role_findings
from timekeeper.store.engine.engine import UnavailableError

TEXT = "text/plain"

ROUTES = (
    ApiRoute(
        path="/livez",
        about="200 while the process lives",
        right=None,
        answers={TEXT: str},
        needs_token=False,
    ),
    ApiRoute(
        path="/readyz",
        about="200 while the database can be written and the settler is up to date, else 503 with the reason",
        right=None,
        answers={TEXT: str},
        needs_token=False,
    ),
    ApiRoute(
        path="/metrics",
        about="for Prometheus; needs `get` of the nonResourceURL `/metrics`, unless --metrics-access is open",
        right=None,
        answers={TEXT: str},
    ),
)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.get("/livez")
    def livez() -> Response:
        return _text("ok\n", 200)

    @app.get("/readyz")
    def readyz() -> Response:
        pulse, problems, found = _problems(services)
        failing = read_watches(pulse.watches)
        wrong = sorted(found.items())
        lines = [f"settler finds {code}: {number}" for code, number in wrong]
        lines += [f"watch of {each}: it fails; GET /v1/doubts says why" for each in failing]
        if problems:
            return _text("".join(f"{each}\n" for each in (*problems, *lines)), 503)
        fault = services.clock_fault()  # it is corrected, so this process can serve
        lines += [fault] if fault else []
        return _text("".join(f"{each}\n" for each in ("ok", *lines)), 200)

    @app.get("/metrics")
    def figures() -> Response:
        if not services.open_metrics:
            services.gate.allow_metrics(request.headers.get("Authorization"))
        return Response(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)


def _problems(services: Services) -> tuple[Pulse, list[str], Mapping[str, int]]:
    """The settler's pulse, which is in the database, the reasons not to be ready, and by code what the
    settler finds: no names, for the route needs no token."""
    try:
        pulse = services.ledger.pulse()
        with services.ledger.store.reading() as connection:
            lists = role_findings.lists(connection, "settler")
        services.ledger.store.check_writable()
    except UnavailableError as error:
        return NEVER, [f"database: {services.damage() or error}"], {}
    services.outages.worked("read")
    if damage := services.damage():
        return NEVER, [f"database: {damage}"], {}
    wrong = counted(msgspec.to_builtins(lists["settler"][1])) if "settler" in lists else {}
    now_ms, silent_ms = services.clock(), services.ledger.silent_ms
    if abs(now_ms - pulse.tick_ms) > silent_ms:
        since = f" since {moment(pulse.tick_ms)}" if pulse.tick_ms else " yet"
        return pulse, [f"settler: it has written nothing{since}"], wrong
    has_decided = abs(now_ms - pulse.decided_ms) <= silent_ms
    return pulse, [f"settler: it {pulse.state}"] if pulse.state and not has_decided else [], wrong


def _text(body: str, status: int) -> Response:
    return Response(body, status, content_type="text/plain; charset=utf-8")
