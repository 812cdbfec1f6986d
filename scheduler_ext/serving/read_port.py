"""The read-only port: pages, metrics and simulations, over TLS, for callers with a token and the right to
read (docs/decisions/0044). One call writes: the timekeeper's account alone may have cards reserved for a
gang. It has a loop and bounds of its own (`timekeeper.runtime.http.server`)."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import orjson
from flask import Flask, Response, request

from scheduler_ext.reports.cluster_page import Clusters, UnknownNodeError
from scheduler_ext.reports.metrics import ExtenderMetrics
from scheduler_ext.reports.query import cluster_query, waiting_query
from scheduler_ext.reports.waiting_page import WaitingPods
from scheduler_ext.simulation.child import BusyError, ChildError
from scheduler_ext.verbs.protocol import MalformedArgsError
from timekeeper.runtime.auth.gate import Gate
from timekeeper.runtime.http.problem_details import Problem, answer_with_problems, unavailable
from timekeeper.runtime.http.service import HttpAnswer, HttpLimits, HttpService

# Raises a Problem if the request's caller may not get this resource in the namespace ("": in all)
Admit = Callable[[str, str], object]
AdmitScraper = Callable[[], object]  # Raises a Problem if the request's caller may not read metrics

MAX_BODY_BYTES = 4 * 1024 * 1024
_THREADS = 4
_LIMITS = HttpLimits(MAX_BODY_BYTES, connections=64, unanswered_bytes=4 * MAX_BODY_BYTES)

# The answer to a body. Raises BusyError, ChildError (simulations alone), or a Problem for a bad body.
Simulate = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages' sources. ``unready``: why calls should go to another replica; "" if this one serves them."""

    clusters: Clusters
    waiting: WaitingPods
    metrics: ExtenderMetrics
    unready: Callable[[], str]


def create_app(pages: Pages, incomplete: Callable[[], str]) -> Flask:
    """The WSGI application of the verbs' port: the routes of ``pages``, without a token."""
    app = Flask("scheduler_ext", static_folder=None)
    register(app, pages, incomplete)
    answer_with_problems(app)
    return app


def register(
    app: Flask,
    pages: Pages,
    incomplete: Callable[[], str],
    admit: Admit = lambda _resource, _namespace: None,
    admit_scraper: AdmitScraper = lambda: None,
) -> None:
    """GET /v1/cluster, /v1/waiting, /metrics, /livez, /readyz. ``incomplete``: why the cluster is not known
    yet; "" if it is."""

    def told(answer: Callable[[], Mapping[str, object]]) -> Response:
        why = incomplete()
        if why:
            return said(503, why)
        try:
            return Response(orjson.dumps(answer()), mimetype="application/json")
        except MalformedArgsError as error:
            return said(400, str(error))
        except UnknownNodeError as error:
            return said(404, str(error))

    @app.get("/v1/cluster")
    def cluster() -> Response:
        admit("cards", "")
        return told(lambda: pages.clusters.answer(cluster_query(request.args.to_dict(flat=False))))

    @app.get("/v1/waiting")
    def waiting() -> Response:
        admit("decisions", request.args.get("namespace", ""))
        return told(lambda: pages.waiting.answer(waiting_query(request.args.to_dict(flat=False))))

    @app.get("/metrics")
    def exposition() -> Response:
        admit_scraper()
        return Response(pages.metrics.exposition(), mimetype="text/plain")

    @app.get("/livez")
    def livez() -> Response:
        return said(200, "ok")

    @app.get("/readyz")
    def readyz() -> Response:
        why = incomplete() or pages.unready()
        return said(503, why) if why else said(200, "ok")


def said(status: int, sentence: str) -> Response:
    """A sentence as text/plain."""
    return Response(sentence + "\n", status=status, mimetype="text/plain")


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
