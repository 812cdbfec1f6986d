"""The read-only port: metrics and simulations, over TLS, for callers with a token and the right to read.
It has a loop and bounds of its own (`timekeeper.runtime.http.server`)."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from flask import Flask, Response, request

from scheduler_ext.reports.metrics import ExtenderMetrics
from timekeeper.runtime.auth.gate import Gate
from timekeeper.runtime.http.problem_details import Problem, answer_with_problems, unavailable
from timekeeper.runtime.http.service import HttpAnswer, HttpLimits, HttpService

AdmitScraper = Callable[[], object]  # Raises a Problem if the request's caller may not read metrics

MAX_BODY_BYTES = 4 * 1024 * 1024
_THREADS = 4
_LIMITS = HttpLimits(MAX_BODY_BYTES, connections=64, unanswered_bytes=4 * MAX_BODY_BYTES)

# The answer to a body. Raises a Problem for a bad body.
Simulate = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class ReadSources:
    """What the routes answer with. ``incomplete``: why the cluster is not known yet; ``unready``: the same,
    or why calls should go to another replica; "" if neither is so. ``wrong``: codes of findings."""

    metrics: ExtenderMetrics
    incomplete: Callable[[], str]
    unready: Callable[[], str]
    simulate: Simulate
    wrong: Callable[[], Mapping[str, int]]


def create_app(sources: ReadSources) -> Flask:
    """The WSGI application of the verbs' port: its read routes, without a token."""
    app = Flask("scheduler_ext", static_folder=None)
    _register(app, sources)
    answer_with_problems(app)
    return app


def _register(app: Flask, sources: ReadSources, admit_scraper: AdmitScraper = lambda: None) -> None:
    """GET /metrics, /livez, /readyz."""

    @app.get("/metrics")
    def exposition() -> Response:
        admit_scraper()
        return Response(sources.metrics.exposition(), mimetype="text/plain")

    @app.get("/livez")
    def livez() -> Response:
        return _said(200, "ok")

    @app.get("/readyz")
    def readyz() -> Response:
        why = sources.unready()
        codes = [f"extender finds {code}: {number}" for code, number in sorted(sources.wrong().items())]
        return _said(503, why) if why else _said(200, "\n".join(("ok", *codes)))


def _said(status: int, sentence: str) -> Response:
    """A sentence as text/plain."""
    return Response(sentence + "\n", status=status, mimetype="text/plain")


def read_service(gate: Gate, sources: ReadSources, tls: Callable[[], ssl.SSLContext | None]) -> HttpService:
    """The port's service."""
    return HttpService(read_app(gate, sources), _THREADS, _LIMITS, tls=tls, refusal=_refusal)


def read_app(gate: Gate, sources: ReadSources) -> Flask:
    """The WSGI application. /livez and /readyz need no token."""
    app = Flask("scheduler_ext.read_port", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    _register(app, sources, lambda: gate.allow_metrics(request.headers.get("Authorization")))

    @app.post("/v1/simulate")
    def simulation() -> Response:
        gate.allow(request.headers.get("Authorization"), "create", "simulations")
        why = sources.incomplete()
        if why:
            return unavailable(why).response()
        return Response(sources.simulate(request.get_data(cache=False)), mimetype="application/json")

    answer_with_problems(app)

    @app.errorhandler(Problem)
    def refuse(problem: Problem) -> Response:
        return problem.response()

    return app


def _refusal(status: HTTPStatus, sentence: str) -> HttpAnswer:
    return Problem(status, sentence).http_answer()
