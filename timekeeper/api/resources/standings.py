"""``GET /v1/standings``: what webhooks and extender poll."""

from flask import Flask, Response, request

from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.core.wire import Standings
from timekeeper.runtime.http.problem_details import unavailable

# Standings older than this are not served; a poller then lets its own copy age.
STALE_MS = 60_000

STANDINGS = ApiRoute(
    path="/v1/standings",
    about="every namespace's standing, and what webhook and extender need of _settings",
    right=Right("get", "standings"),
    answers={JSON: Standings},
    shared_by="",
)
ROUTES = (STANDINGS,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def standings(_call: Call) -> Response:
        served, pulse = services.ledger.standings()
        if not served.revision or services.clock() - pulse.decided_ms > STALE_MS:
            raise unavailable("the standings are out of date: the settler has made no decision recently")
        is_packed = request.accept_encodings.quality("gzip") > 0
        response = Response(served.packed if is_packed else served.body, content_type="application/json")
        if is_packed:
            response.content_encoding = "gzip"
        # a strong ETag identifies exactly these bytes (RFC 9110, 8.8.3.3)
        response.set_etag(f"{served.revision}-gzip" if is_packed else served.revision)
        response.vary.add("Accept-Encoding")
        response.headers["Cache-Control"] = "no-cache"
        return response

    serve(app, services, STANDINGS, standings)
