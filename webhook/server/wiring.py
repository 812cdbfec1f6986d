"""Connects the parts of one worker; the thread that keeps the table of standings a second old, so that no
review waits for the timekeeper; and ``GET /metrics``, for callers that may read metrics
(docs/decisions/0051)."""

import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread

from timekeeper.core.admission.table import StandingsTable
from timekeeper.core.decisions import Record
from timekeeper.edge.clock import monotonic_ms
from timekeeper.edge.timekeeper_client import TimekeeperClient, TimekeeperPoller
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.auth.gate import METRICS, gate_of
from timekeeper.runtime.connect import connect
from timekeeper.runtime.file_watch import FileWatch
from timekeeper.runtime.flags import UnusableError
from timekeeper.runtime.http.problem_details import Problem, unavailable
from timekeeper.runtime.http.service import HttpAnswer, HttpRequest, HttpService, Route
from timekeeper.runtime.recording.decision_posts import PATH as DECISIONS
from timekeeper.runtime.recording.decision_posts import DecisionPosts
from timekeeper.runtime.tls import ca_text
from webhook.log import Log, LogEvent, log
from webhook.metrics import FiguresGoneError, WebhookMetrics
from webhook.server.app import create_app, create_calls
from webhook.server.claim_cache import ClaimCache
from webhook.server.owner_events import start_owner_events
from webhook.server.review_endpoint import LIMITS, review_routes
from webhook.server.reviewer import Reviewer
from webhook.server.simulation import PATH, simulation_call
from webhook.settings.serve import STALE_AFTER_S, WebhookSettings
from webhook.standings import decode

STANDINGS = "/v1/standings"

_METRICS_THREADS = 1  # of its own: neither reviews nor probes wait for the API server's answer about a reader

_APP_THREADS = 2  # for probes


def standings_poller(
    url: str,
    token_file: Path,
    ca: Callable[[], str | None],
    now_ms: Callable[[], int],
    log: Log,
    metrics: WebhookMetrics,
) -> TimekeeperPoller[StandingsTable, LogEvent]:
    """Polls ``GET /v1/standings``."""
    client = TimekeeperClient(url, STANDINGS, token_file, ca)
    events: tuple[LogEvent, LogEvent] = "standings-updated", "standings-failed"
    return TimekeeperPoller(client, decode, StandingsTable.confirmed, now_ms, log, events, metrics.polled)


def metrics_route(metrics: WebhookMetrics, is_open: bool, api: Api | None) -> Route:
    """The route of one worker. ``is_open``: callers need no token. ``api``: the API server that reviews the
    others' tokens; without it they get 503."""
    gate = None if api is None or is_open else gate_of(api)

    def answer(request: HttpRequest) -> HttpAnswer:
        try:
            if gate is not None:
                gate.allow_metrics(request.head.fields.get("AUTHORIZATION"))
            elif not is_open:
                raise unavailable(
                    "the webhook has no way to the API server, which would review your token: give it a"
                    " service account or --kubeconfig, or set --metrics-access=open"
                )
            return HttpAnswer(HTTPStatus.OK, "text/plain; charset=utf-8", metrics.exposition())
        except Problem as problem:
            return problem.http_answer()
        except FiguresGoneError:
            gone = "the folder with the workers' figures was removed; restart the webhook"
            return unavailable(gone).http_answer()

    return Route("GET", METRICS, answer, _METRICS_THREADS)


def make_service(
    settings: WebhookSettings, metrics: WebhookMetrics, tls: Callable[[], ssl.SSLContext | None]
) -> HttpService:
    """What one worker serves. It starts the threads that poll the standings and send Events, so call
    it after the fork."""
    ca = FileWatch[str]((settings.ca,), lambda: ca_text(settings.ca), monotonic_ms, log)
    poller = standings_poller(settings.timekeeper_url, settings.token_file, ca, monotonic_ms, log, metrics)
    Thread(target=poller.run, args=(Event(),), name="standings", daemon=True).start()

    def table() -> StandingsTable | None:
        return poller.value

    api = _api_server(settings)
    claims = ClaimCache(api, log, lambda: _drivers(table()), metrics.found)
    claims.start()
    flags = replace(settings.policy, claims=claims.known)
    times, ranged = (monotonic_ms, 1000 * STALE_AFTER_S), claims.has_user_range
    admission = Reviewer(flags, table, ca, *times, lambda: poller.was_polled, ranged.get)
    notice = start_owner_events(api, socket.gethostname())
    record = _start_decision_posts(settings, ca, metrics, claims)
    calls = create_calls(admission, metrics, log, settings.template_paths, notice, record)
    calls[PATH] = simulation_call(admission, log)
    verified_only = settings.client_ca is not None
    routes = (
        *review_routes(calls, log, verified_only, (PATH,)),
        metrics_route(metrics, settings.metrics_access == "open", api),
    )
    return HttpService(
        create_app(admission, lambda: claims.health),
        _APP_THREADS,
        LIMITS,
        routes,
        tls=tls,
    )


def _drivers(table: StandingsTable | None) -> Mapping[str, bool]:
    """What `_settings` say of drivers, by the last table."""
    return {} if table is None else table.settings.drivers


def _api_server(settings: WebhookSettings) -> Api | None:
    """The API server, for Events and for reviews of those who read the metrics; None if there is no way to
    it, which does not affect admission."""
    try:
        return connect(settings.kubeconfig, connections=2)
    except UnusableError as error:
        log("no-events", level="warning", error=error)
        return None


def _start_decision_posts(
    settings: WebhookSettings, ca: Callable[[], str | None], metrics: WebhookMetrics, claims: ClaimCache
) -> Record:
    """Starts the thread that posts what was decided, so call it after the fork."""
    client = TimekeeperClient(settings.timekeeper_url, DECISIONS, settings.token_file, ca)
    posts = DecisionPosts(client, "webhook", monotonic_ms, log, metrics.decided, claims.may_exist)
    Thread(target=posts.run, args=(Event(),), name="decisions", daemon=True).start()
    return posts.record
