"""``POST /v1/bindings``: the extender reports the pods that it bound."""

from typing import TypedDict

from flask import Flask, Response, request

from timekeeper.api.bodies.bindings import read_bindings
from timekeeper.api.http.answers import Version, answer
from timekeeper.api.http.body import read_body
from timekeeper.api.http.routes import JSON, ApiRoute
from timekeeper.api.http.services import Services
from timekeeper.core.wire import Bindings
from timekeeper.store.writes import bindings

PATH = "/v1/bindings"


class Accepted(TypedDict):
    """The bindings are stored."""

    version: Version


REPORT = ApiRoute(
    "POST",
    PATH,
    "the extender reports the pods that it bound, so that one that vanishes unseen is charged",
    None,
    {JSON: Accepted},
    body=Bindings,
    refuses=(413,),
    needs="`create bindings` in all namespaces",
)
ROUTES = (REPORT,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    @app.post(PATH)
    def bound() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "bindings")
        reported = read_bindings(read_body(), received_ms)
        with services.ledger.store.writing() as connection:
            bindings.record(connection, reported, received_ms)
        return answer({"version": 1})
