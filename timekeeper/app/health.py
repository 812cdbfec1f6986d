"""``/livez``, ``/readyz`` and ``/metrics``: for kubelet and Prometheus, who bring no token."""

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST

from timekeeper import metrics
from timekeeper.app.services import Services
from timekeeper.store.engine import UnavailableError

_SETTLER_SILENT_MS = 10_000


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
    if abs(services.clock() - pulse.tick_ms) > _SETTLER_SILENT_MS:
        return ["settler: it has written nothing of late"]
    return [f"settler: it {pulse.state}"] if pulse.state else []


def _text(body: str, status: int) -> Response:
    return Response(body, status, content_type="text/plain; charset=utf-8")
