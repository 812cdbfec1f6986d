"""``/livez``, ``/readyz`` and ``/metrics``: for kubelet and Prometheus, who bring no token."""

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST

from timekeeper import metrics
from timekeeper.api.http.services import Services
from timekeeper.store.engine.engine import UnavailableError

_SETTLER_SILENT_MS = 10_000
# Where there are replicas, one of them settles in place of a silent one, and all serve on until it has begun:
# a Lease's duration, a transaction that stood still, and a first look at the cluster.
_TAKEOVER_MS = 45_000


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.get("/livez")
    def livez() -> Response:
        return _text("ok\n", 200)

    @app.get("/readyz")
    def readyz() -> Response:
        problems = _problems(services)
        return _text("".join(f"{problem}\n" for problem in problems) or "ok\n", 503 if problems else 200)

    @app.get("/metrics")
    def figures() -> Response:
        return Response(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)


def _problems(services: Services) -> list[str]:
    """What keeps the timekeeper from being ready: the database, or the settler, which writes its pulse
    there."""
    try:
        pulse = services.ledger.pulse()
    except UnavailableError as error:
        return [f"database: {error}"]
    now_ms, silent_ms = (
        services.clock(),
        _TAKEOVER_MS if services.ledger.store.is_shared else _SETTLER_SILENT_MS,
    )
    if abs(now_ms - pulse.tick_ms) > silent_ms:
        return ["settler: it has written nothing of late"]
    has_decided = abs(now_ms - pulse.decided_ms) <= silent_ms
    return [f"settler: it {pulse.state}"] if pulse.state and not has_decided else []


def _text(body: str, status: int) -> Response:
    return Response(body, status, content_type="text/plain; charset=utf-8")
