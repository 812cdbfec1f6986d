"""``GET /v1/standings``: what webhooks and extender poll."""

from flask import Flask, Response, request

from timekeeper.app.bodies import read_parameters
from timekeeper.app.problem import unavailable
from timekeeper.app.services import Services

# Older than this, a standing is nobody's to act on: a poller that hears so lets its own age.
STALE_MS = 60_000


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    @app.get("/v1/standings")
    def standings() -> Response:
        services.gate.allow(request.headers.get("Authorization"), "get", "standings")
        read_parameters(request.args.to_dict(flat=False), {})
        served, pulse = services.ledger.standings()
        if not served.revision or services.clock() - pulse.decided_ms > STALE_MS:
            raise unavailable("the standings are not kept up: the settler has decided nothing of late")
        response = Response(served.body, content_type="application/json")
        response.set_etag(served.revision)
        response.headers["Cache-Control"] = "no-cache"
        response.make_conditional(request)
        return response
