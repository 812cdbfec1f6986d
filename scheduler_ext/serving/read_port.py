"""The read-only port: pages, metrics and simulations, over TLS, for callers with a token and the right to
read (docs/decisions/0044). One call writes: the timekeeper's account
alone may have cards reserved for a gang. It has a loop and bounds of its own
(`timekeeper.runtime.http.server`)."""

import ssl
from collections.abc import Callable
from http import HTTPStatus

from flask import Flask, Response, request

from scheduler_ext.serving.read_routes import Pages, register
from scheduler_ext.simulation.child import BusyError, ChildError
from timekeeper.runtime.auth.gate import Gate
from timekeeper.runtime.http.problem_details import Problem, answer_with_problems, unavailable
from timekeeper.runtime.http.service import HttpAnswer, HttpLimits, HttpService

MAX_BODY_BYTES = 4 * 1024 * 1024
_THREADS = 4
_LIMITS = HttpLimits(MAX_BODY_BYTES, connections=64, unanswered_bytes=4 * MAX_BODY_BYTES)


# The answer to a body. Raises BusyError, ChildError (simulations alone), or a Problem for a bad body.
Simulate = Callable[[bytes], bytes]


def read_service(
    gate: Gate,
    pages: Pages,
    incomplete: Callable[[], str],
    simulate: Simulate,
    reserve: Simulate,
    tls: Callable[[], ssl.SSLContext | None],
) -> HttpService:
    """The port's service. ``incomplete``: why the cluster is not known yet, "" if it is."""
    app = read_app(gate, pages, incomplete, simulate, reserve)
    return HttpService(app, _THREADS, _LIMITS, tls=tls, refusal=_refusal)


def read_app(
    gate: Gate, pages: Pages, incomplete: Callable[[], str], simulate: Simulate, reserve: Simulate
) -> Flask:
    """The WSGI application. /livez and /readyz need no token."""
    app = Flask("scheduler_ext.read_port", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    def admit(resource: str, namespace: str) -> None:
        gate.allow(request.headers.get("Authorization"), "get", resource, namespace)

    register(app, pages, incomplete, admit, lambda: gate.allow_metrics(request.headers.get("Authorization")))

    @app.post("/v1/simulate")
    def simulation() -> Response:
        gate.allow(request.headers.get("Authorization"), "create", "simulations")
        why = incomplete()
        if why:
            return unavailable(why).response()
        return _simulated(simulate, request.get_data(cache=False))

    @app.post("/v1/gangs/reserve")
    def reservation() -> Response:
        gate.allow(request.headers.get("Authorization"), "create", "gangs")
        why = incomplete()
        if why:
            return unavailable(why).response()
        return Response(reserve(request.get_data(cache=False)), mimetype="application/json")

    answer_with_problems(app)

    @app.errorhandler(Problem)
    def refuse(problem: Problem) -> Response:
        return problem.response()

    return app


def _simulated(simulate: Simulate, body: bytes) -> Response:
    try:
        return Response(simulate(body), mimetype="application/json")
    except BusyError:
        busy = "another simulation is running; one runs at a time"
        return Problem(429, busy, headers={"Retry-After": "1"}).response()
    except ChildError as error:
        return unavailable(f"the simulation gave no answer: {error}").response()


def _refusal(status: HTTPStatus, sentence: str) -> HttpAnswer:
    return Problem(status, sentence).http_answer()
