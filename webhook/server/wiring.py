"""Connects the parts of one worker."""

import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Event, Thread

from timekeeper.core.admission.table import StandingsTable
from timekeeper.core.decisions import Record
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.clock import monotonic_ms
from timekeeper.runtime.connect import connect
from timekeeper.runtime.file_watch import FileWatch
from timekeeper.runtime.flags import UnusableError
from timekeeper.runtime.http.service import HttpLimits, HttpService
from timekeeper.runtime.log import log
from timekeeper.runtime.recording.decision_posts import PATH as DECISIONS
from timekeeper.runtime.recording.decision_posts import DecisionPosts
from timekeeper.runtime.timekeeper_client import TimekeeperClient
from timekeeper.runtime.tls import ca_text
from webhook.metrics import WebhookMetrics
from webhook.server.app import create_app, create_calls
from webhook.server.claim_cache import ClaimCache
from webhook.server.metrics_route import metrics_route
from webhook.server.owner_events import start_owner_events
from webhook.server.review_endpoint import MAX_REVIEW_BYTES, review_routes
from webhook.server.reviewer import Reviewer
from webhook.server.simulation import PATH, simulation_call
from webhook.server.standings_poller import StandingsPoller
from webhook.settings.serve import WebhookSettings

_APP_THREADS = 2  # for probes


def make_service(
    settings: WebhookSettings, metrics: WebhookMetrics, tls: Callable[[], ssl.SSLContext | None]
) -> HttpService:
    """What one worker serves. It starts the threads that poll the standings and send Events, so call
    it after the fork."""
    ca = FileWatch[str]((settings.ca,), lambda: ca_text(settings.ca), monotonic_ms, log)
    standings = StandingsPoller(settings.timekeeper_url, settings.token_file, ca, monotonic_ms, log, metrics)
    standings.start()
    api = _api_server(settings)
    claims = ClaimCache(api, log, lambda: _drivers(standings.table()))
    claims.start()
    flags = replace(settings.policy, claims=claims.known)
    admission = Reviewer(
        flags, standings.table, ca, monotonic_ms, 1000 * settings.stale_after_s, standings.asked
    )
    notice = start_owner_events(api, socket.gethostname())
    record = _start_decision_posts(settings, ca, metrics)
    calls = create_calls(admission, metrics, log, settings.template_paths, notice, record)
    calls[PATH] = simulation_call(admission, monotonic_ms, log)
    verified_only = settings.client_ca is not None
    routes = (
        *review_routes(calls, log, verified_only, {PATH: 1}),
        metrics_route(metrics, settings.metrics_access == "open", api),
    )
    return HttpService(create_app(admission), _APP_THREADS, HttpLimits(MAX_REVIEW_BYTES), routes, tls=tls)


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
    settings: WebhookSettings, ca: Callable[[], str | None], metrics: WebhookMetrics
) -> Record:
    """Starts the thread that posts what was decided, so call it after the fork."""
    client = TimekeeperClient(settings.timekeeper_url, DECISIONS, settings.token_file, ca)
    posts = DecisionPosts(client, "webhook", monotonic_ms, log, metrics.decided)
    Thread(target=posts.run, args=(Event(),), name="decisions", daemon=True).start()
    return posts.record
