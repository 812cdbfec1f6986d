"""``POST /v1/ends``: each extender reports the removals of bound pods, with what proves their ends."""

from flask import Flask, Response, request

from timekeeper.accounts.ends import ReportedEnd
from timekeeper.api.http.answers import Accepted, answer
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.routes import JSON, ApiRoute, read_body
from timekeeper.api.http.services import Services
from timekeeper.core.ledger.hold import PodHold
from timekeeper.store import ends
from timekeeper.wire.bindings import EndEntry, Ends

BODY = Body(Ends)


def read_ends(body: bytes, received_ms: int) -> tuple[ReportedEnd, ...]:
    """Parse the body, received at that time. Raises a Problem that names the field."""
    return tuple(_end(entry, received_ms) for entry in BODY.read(body).ends)


def _end(entry: EndEntry, received_ms: int) -> ReportedEnd:
    return ReportedEnd(
        entry.uid,
        entry.namespace,
        entry.pod,
        entry.node,
        PodHold(
            bound_ms=entry.bound_ms,
            over=entry.over,
            ended_ms=entry.ended_ms,
            reported_ms=entry.reported_ms,
            witnessed_ms=entry.witnessed_ms,
            grace_ms=entry.grace_ms,
            deletion_ms=entry.deletion_ms,
        ),
        received_ms - entry.removed_age_ms,
        None if entry.left_age_ms is None else received_ms - entry.left_age_ms,
    )


PATH = "/v1/ends"

REPORT = ApiRoute(
    method="POST",
    path=PATH,
    about="each extender reports the removals that it saw, so that a pod that ends while no settler runs is "
    "charged exactly",
    right=None,
    answers={JSON: Accepted},
    body=BODY,
    needs="`create bindings` in all namespaces",
)
ROUTES = (REPORT,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    @app.post(PATH)
    def removed() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "bindings")
        reported = read_ends(read_body(), received_ms)
        with services.ledger.store.writing() as connection:
            ends.record(connection, reported, received_ms)
        return answer(Accepted(version=1))
