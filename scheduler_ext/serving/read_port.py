"""The read-only port: pages, metrics and simulations, over TLS, for callers with a token and the right to
read (docs/decisions/0044). It has a loop and bounds of its own (`timekeeper.runtime.http.worker`)."""

import ssl
from collections.abc import Callable
from http import HTTPStatus

from flask import Flask, Response, request

from scheduler_ext.serving.read_routes import Pages, register
from timekeeper.runtime.auth.gate import Gate
from timekeeper.runtime.http.problem_details import Problem, answer_with_problems
from timekeeper.runtime.http.service import HttpAnswer, HttpLimits, HttpService

MOST_BODY_BYTES = 4 * 1024 * 1024
_THREADS = 4
_LIMITS = HttpLimits(MOST_BODY_BYTES, connections=64, unanswered_bytes=4 * MOST_BODY_BYTES)


def read_service(
    gate: Gate,
    pages: Pages,
    incomplete: Callable[[], str],
    tls: Callable[[], ssl.SSLContext | None],
) -> HttpService:
    """The port's service. ``incomplete``: why the cluster is not known yet, "" if it is."""
    return HttpService(read_app(gate, pages, incomplete), _THREADS, _LIMITS, tls=tls, refusal=_refusal)


def read_app(gate: Gate, pages: Pages, incomplete: Callable[[], str]) -> Flask:
    """The WSGI application. /livez and /readyz need no token."""
    app = Flask("scheduler_ext.read_port", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BODY_BYTES

    def admit(resource: str, namespace: str) -> None:
        gate.allow(request.headers.get("Authorization"), "get", resource, namespace)

    register(app, pages, incomplete, admit)
    answer_with_problems(app)

    @app.errorhandler(Problem)
    def refuse(problem: Problem) -> Response:
        return problem.response()

    return app


def _refusal(status: HTTPStatus, sentence: str) -> HttpAnswer:
    return Problem(status, sentence).http_answer()
