"""``/livez`` and ``/readyz`` for the kubelet, without a token, and ``/metrics`` for Prometheus."""

from http import HTTPStatus

from flask import Flask, Response, request
from prometheus_client import CONTENT_TYPE_LATEST

from timekeeper import metrics
from timekeeper.api.http.routes import ApiRoute
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.readiness import ReadinessWatch
from timekeeper.runtime.http.service import HttpAnswer, HttpRequest, Route, plain_text

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
    """Add the routes but those of `probes`."""

    @app.get("/metrics")
    def figures() -> Response:
        if not services.open_metrics:
            services.gate.allow_metrics(request.headers.get("Authorization"))
        return Response(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)


def probes(readiness: ReadinessWatch) -> tuple[Route, ...]:
    """The kubelet's routes for the loop, which answers however many other requests wait for a thread."""

    def readyz(_: HttpRequest) -> HttpAnswer:
        is_ready, lines = readiness.answer()
        return plain_text(HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(lines))

    return (
        Route("GET", "/livez", lambda _: plain_text(HTTPStatus.OK, "ok")),
        Route("GET", "/readyz", readyz),
    )
