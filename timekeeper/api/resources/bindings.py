"""``POST /v1/bindings``: the extender reports the pods that it bound."""

from flask import Flask, Response, request

from timekeeper.accounts.pods import ReportedBinding
from timekeeper.api.http.answers import Accepted, answer
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.routes import JSON, ApiRoute, read_body
from timekeeper.api.http.services import Services
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.request.cards import decode_placement
from timekeeper.core.values import Ask, ContainerAsk, GPURequest, UndecodableError
from timekeeper.runtime.http.problem_details import bad
from timekeeper.store import bindings
from timekeeper.wire.bindings import BindingAsk, BindingEntry, Bindings

BODY = Body(Bindings)


def read_bindings(body: bytes, received_ms: int) -> tuple[ReportedBinding, ...]:
    """Parse the body, received at that time. Raises a Problem that names the field."""
    listed = BODY.read(body).bindings
    return tuple(_binding(each, f"bindings[{at}]", received_ms) for at, each in enumerate(listed))


def _binding(entry: BindingEntry, where: str, received_ms: int) -> ReportedBinding:
    if entry.dialect not in BY_NAME:
        raise bad(f"{where}.dialect", f"it must be one of {', '.join(sorted(BY_NAME))}")
    return ReportedBinding(
        entry.uid,
        entry.namespace,
        entry.pod,
        entry.node,
        received_ms - entry.age_ms,
        GPURequest(dialect=entry.dialect, asks=tuple(map(_ask, entry.asks))),
        _devices(entry.devices, f"{where}.devices"),
        entry.grace_ms,
    )


def _ask(ask: BindingAsk) -> ContainerAsk:
    resources = tuple(sorted(ask.resources.items()))
    asked = Ask(ask.devices, ask.share_milli, ask.memory_mib, resources, ask.memory_milli)
    return ContainerAsk(ask.container, ask.init, asked)


def _devices(text: str, where: str) -> str:
    """The text; "" of a placement without cards: the node's plugin chooses them."""
    try:
        return text if decode_placement(text).containers else ""
    except UndecodableError as error:
        raise bad(where, f"it must be a placement: {error}") from error


PATH = "/v1/bindings"

REPORT = ApiRoute(
    method="POST",
    path=PATH,
    about="the extender reports the pods that it bound, so that one that vanishes unseen is charged",
    right=None,
    answers={JSON: Accepted},
    body=BODY,
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
        return answer(Accepted(version=1))
