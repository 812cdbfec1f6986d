"""``/livez`` and ``/readyz`` for the kubelet, without a token, and ``/metrics`` for Prometheus."""

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST

from timekeeper import metrics
from timekeeper.api.http.routes import ApiRoute
from timekeeper.api.http.services import Services
from timekeeper.store.engine.engine import UnavailableError

_SETTLER_SILENT_MS = 10_000
# A replica takes over from a silent settler, and all keep serving until it has started:
# a Lease's duration, a transaction that stood still, and a first look at the cluster.
_TAKEOVER_MS = 45_000

TEXT = "text/plain"

ROUTES = (
    ApiRoute("GET", "/livez", "200 while the process lives", None, {TEXT: str}, needs_token=False),
    ApiRoute(
        "GET",
        "/readyz",
        "200 while the database answers and the settler is up to date, else 503 with the reason",
        None,
        {TEXT: str},
        needs_token=False,
    ),
    ApiRoute(
        "GET",
        "/metrics",
        "for Prometheus; needs `get` of the nonResourceURL `/metrics`, unless --metrics-access is open",
        None,
        {TEXT: str},
    ),
)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.get("/livez")
    def livez() -> Response:
        return _text("ok\n", 200)

    @app.get("/readyz")
    def readyz() -> Response:
        problems = _problems(services)
        if problems:
            return _text("".join(f"{problem}\n" for problem in problems), 503)
        fault = services.clock_fault()  # it is corrected, so this process can serve
        return _text(f"ok\n{fault}\n" if fault else "ok\n", 200)

    @app.get("/metrics")
    def figures() -> Response:
        if not services.open_metrics:
            services.gate.allow_metrics(request.headers.get("Authorization"))
        return Response(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)


def _problems(services: Services) -> list[str]:
    """The reasons not to be ready: the database, or the settler, whose pulse is in the database."""
    try:
        pulse = services.ledger.pulse()
    except UnavailableError as error:
        return [f"database: {services.damage() or error}"]
    services.outages.worked("read")
    if damage := services.damage():
        return [f"database: {damage}"]
    now_ms, silent_ms = (
        services.clock(),
        _TAKEOVER_MS if services.ledger.store.is_shared else _SETTLER_SILENT_MS,
    )
    if abs(now_ms - pulse.tick_ms) > silent_ms:
        return ["settler: it has written nothing recently"]
    has_decided = abs(now_ms - pulse.decided_ms) <= silent_ms
    return [f"settler: it {pulse.state}"] if pulse.state and not has_decided else []


def _text(body: str, status: int) -> Response:
    return Response(body, status, content_type="text/plain; charset=utf-8")
