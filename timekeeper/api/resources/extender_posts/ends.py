"""``POST /v1/ends``: each extender reports the removals of bound pods, with what proves their ends."""

from typing import TypedDict

from flask import Flask, Response, request

from timekeeper.api.bodies.ends import read_ends
from timekeeper.api.http.answers import Version, answer
from timekeeper.api.http.body import read_body
from timekeeper.api.http.routes import JSON, ApiRoute
from timekeeper.api.http.services import Services
from timekeeper.core.wire import Ends
from timekeeper.store.writes import ends

PATH = "/v1/ends"


class EndsAccepted(TypedDict):
    """The ends are stored."""

    version: Version


REPORT = ApiRoute(
    "POST",
    PATH,
    "each extender reports the removals that it saw, so that a pod that ends while no settler runs is "
    "charged exactly",
    None,
    {JSON: EndsAccepted},
    body=Ends,
    refuses=(413,),
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
        return answer({"version": 1})
