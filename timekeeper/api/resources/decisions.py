"""``/v1/decisions``: webhook and extender report what they decided."""

from typing import TypedDict

from flask import Flask, Response, request

from timekeeper import metrics
from timekeeper.api.bodies.decisions import read_decisions
from timekeeper.api.http.answers import Version, answer
from timekeeper.api.http.body import read_body
from timekeeper.api.http.routes import JSON, ApiRoute
from timekeeper.api.http.services import Services
from timekeeper.core.wire import Decisions
from timekeeper.store.writes import decisions

PATH = "/v1/decisions"


class RecordedDecisions(TypedDict):
    """The decisions are stored."""

    version: Version


REPORT = ApiRoute(
    "POST",
    PATH,
    "webhook and extender report what they decided, and why",
    None,
    {JSON: RecordedDecisions},
    body=Decisions,
    refuses=(413,),
    needs="`create decisions` in all namespaces",
)
ROUTES = (REPORT,)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.post(PATH)
    def record_decisions() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "decisions")
        posted = read_decisions(read_body(), received_ms)
        with services.ledger.store.writing() as connection:
            decisions.record(connection, posted.source, posted.runs)
        metrics.DECISIONS.labels(posted.source).inc(sum(each.count for each in posted.runs))
        return answer({"version": 1})
