"""The REST API: its resources, their routes, and the WSGI application."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from flask import Flask, Response, g, request

from timekeeper import metrics
from timekeeper.api import months, nodes, would
from timekeeper.api.http.answers import answer
from timekeeper.api.http.openapi import document
from timekeeper.api.http.routes import JSON, ApiRoute
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.heartbeat_writer import HeartbeatWriter
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.api.ledger.outages import NO_DATABASE, OutageLog
from timekeeper.api.ledger.readiness import ReadinessWatch
from timekeeper.api.resources import (
    account_metrics,
    bindings,
    budgets,
    cluster_map,
    decisions,
    ends,
    explain,
    findings,
    forecasts,
    grants,
    group_grants,
    health,
    heartbeats,
    held,
    legacy_gpusharing,
    node_usage,
    sessions,
    simulation,
    standings,
    usage,
)
from timekeeper.core.texts import moment
from timekeeper.log import log_exception
from timekeeper.runtime.auth.gate import Gate
from timekeeper.runtime.http.problem_details import Problem, answer_with_problems, unavailable
from timekeeper.runtime.peers import NO_PEERS, Peers
from timekeeper.store.accounts import NotWrittenError
from timekeeper.store.engine.engine import ConflictError, NoSpaceError, Store, UnavailableError

Clock = Callable[[], int]

# in the order of the documents
RESOURCES = (
    standings,
    budgets,
    account_metrics,
    grants,
    group_grants,
    sessions,
    findings,
    nodes,
    held,
    usage,
    months,
    would,
    heartbeats,
    node_usage,
    bindings,
    ends,
    cluster_map,
    decisions,
    explain,
    forecasts,
    simulation,
    legacy_gpusharing,
    health,
)
OPENAPI = ApiRoute(
    path="/v1/openapi.json",
    about="this document",
    right=None,
    answers={JSON: dict[str, Any]},
    needs_token=False,
)
ROUTES: tuple[ApiRoute, ...] = (*(route for each in RESOURCES for route in each.ROUTES), OPENAPI)


def create_app(
    store: Store, gate: Gate, clock: Clock, ca: Callable[[], str], heartbeat_interval_ms: int
) -> Flask:
    """The API over a database, with a gate for callers and a clock in milliseconds. It uses neither before
    the first request. ``heartbeat_interval_ms``: the shortest interval asked of sidecars."""
    return app_of(create_services(store, gate, clock, ca, heartbeat_interval_ms))


def create_services(
    store: Store,
    gate: Gate,
    clock: Clock,
    ca: Callable[[], str],
    heartbeat_interval_ms: int,
    damage: Callable[[], str] = lambda: "",
    clock_fault: Callable[[], str] = lambda: "",
    peers: Peers = NO_PEERS,
    open_metrics: bool = False,
    only_meter: bool = False,
    families: tuple[str, ...] = (),
    retain_use_ms: int = 0,
) -> Services:
    """See `create_app`. ``families``: those that are listened on; ``damage``: what is wrong with the
    database's file, "" if nothing is; ``clock_fault``: the same for this machine's clock; ``peers``: the
    roles that simulations ask; ``open_metrics``: `/metrics` needs no token; ``only_meter``: the ledger
    governs nothing; ``retain_use_ms``: as of `Services`."""
    ledger = LedgerReader(store, clock, only_meter)
    outages = OutageLog()
    writer = HeartbeatWriter(store, ledger, heartbeat_interval_ms)
    return Services(
        ledger=ledger,
        gate=gate,
        beating=writer,
        clock=clock,
        ca=ca,
        readiness=ReadinessWatch(ledger, clock, damage, clock_fault, outages),
        outages=outages,
        families=families,
        peers=peers,
        open_metrics=open_metrics,
        retain_use_ms=retain_use_ms,
    )


def app_of(services: Services, of: type[Flask] = Flask) -> Flask:
    """The WSGI application, of this class."""
    app = of("timekeeper", static_folder=None)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    for each in RESOURCES:
        each.register(app, services)
    _describe(app)
    _handle_errors(app, services.outages)
    _count(app)
    return app


@cache
def _document() -> dict[str, Any]:
    """The document, made once, when a caller first asks for it."""
    return document(ROUTES)


def _describe(app: Flask) -> None:
    @app.get(OPENAPI.path)
    def openapi() -> Response:
        return answer(_document())


def _handle_errors(app: Flask, outages: OutageLog) -> None:
    answer_with_problems(app)

    @app.errorhandler(Problem)
    def refuse(problem: Problem) -> Response:
        return problem.response()

    @app.errorhandler(NoSpaceError)
    def end_report(error: NoSpaceError) -> Response:
        return unavailable(str(error)).response()

    @app.errorhandler(NotWrittenError)
    def wait_for_settler(error: NotWrittenError) -> Response:
        return unavailable(str(error)).response()

    @app.errorhandler(UnavailableError)
    @app.errorhandler(ConflictError)
    def wait_for_database(error: Exception) -> Response:
        since_ms = outages.failed("read" if request.method == "GET" else "write", request.path, error)
        since = f"since {moment(since_ms)}, as this process saw it"
        return unavailable(f"{NO_DATABASE} {since}").response()

    @app.errorhandler(Exception)
    def own_up(error: Exception) -> Response:
        log_exception("internal-error", error, route=request.path)
        return Problem(500, "internal error; the timekeeper's log has the details").response()


def _count(app: Flask) -> None:
    @app.before_request
    def begin() -> None:
        g.began = time.monotonic()

    @app.after_request
    def end(response: Response) -> Response:
        if response.get_etag()[0]:  # for each caller of its own: others share the answer
            response.make_conditional(request)
        route = request.url_rule.rule if request.url_rule else "unknown"
        metrics.REQUESTS.labels(route, str(response.status_code)).inc()
        metrics.SECONDS.labels(route).observe(time.monotonic() - g.began)
        return response
