"""``/livez`` and ``/readyz`` for the kubelet, without a token, and ``/metrics`` for Prometheus."""

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST

from timekeeper import metrics
from timekeeper.api.http.routes import ApiRoute
from timekeeper.api.http.services import Services

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
        is_ready, lines = services.readiness.answer()
        return _text("".join(f"{line}\n" for line in lines), 200 if is_ready else 503)

    @app.get("/metrics")
    def figures() -> Response:
        if not services.open_metrics:
            services.gate.allow_metrics(request.headers.get("Authorization"))
        return Response(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)


def _text(body: str, status: int) -> Response:
    return Response(body, status, content_type="text/plain; charset=utf-8")
