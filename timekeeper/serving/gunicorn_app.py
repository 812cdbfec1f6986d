"""The serving workers: the REST API on gunicorn, over TLS with the newest certificate on disk.

``POST /v1/heartbeats`` does without Flask: the loop reads a post, and the writer's thread replies once the
post's group is on the disk."""

import gc
import os
import resource
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import Thread

from prometheus_client import multiprocess

from timekeeper import metrics
from timekeeper.api.create_app import app_of, create_services
from timekeeper.api.http.routes import LARGEST_BODY
from timekeeper.api.ledger.login_sessions import LoginSessions
from timekeeper.api.ledger.outages import DamageWatch
from timekeeper.api.resources.findings import keep_reporting
from timekeeper.api.resources.health import probes
from timekeeper.api.resources.heartbeats import PATH, HeartbeatHandler
from timekeeper.dashboard.app import with_dashboard
from timekeeper.dashboard.login.oidc import OidcLogin
from timekeeper.edge.families import families
from timekeeper.edge.lease import CALL_S
from timekeeper.log import log_exception
from timekeeper.runtime import metrics_folder, parent_death
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.auth.gate import BoundPod, Count, Gate, gate_of
from timekeeper.runtime.auth.local_gate import local_gate
from timekeeper.runtime.connect import connect
from timekeeper.runtime.file_watch import newest_text
from timekeeper.runtime.http.acceptor import ConnectionBalance
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.http.server import HttpServer, listening_socket
from timekeeper.runtime.http.service import Handler, HttpAnswer, HttpLimits, HttpRequest, HttpService, Route
from timekeeper.runtime.peers import peers
from timekeeper.serving.aggregated import aggregated_service, refusal
from timekeeper.serving.tls import check_files, check_oidc_files, newest_context
from timekeeper.settings import TimekeeperSettings
from timekeeper.store.engine.damage import damage_of
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.former import refuse_former

_KEEP_ALIVE_S = 75  # longer than sidecars wait between beats, shorter than idle connections may cost
_CONNECTIONS = 4_000  # of one worker, most of them idle
_OTHER_FILES = 200  # of one worker: the database, the API server, figures
_TOLERANCE = 4  # connections; sidecars are many, and each stays for one heartbeat or for long


def heartbeat_route(heartbeats: HeartbeatHandler) -> Route:
    """The route for the loop. A token that must be reviewed by the API server first takes a thread."""
    seconds = metrics.SECONDS.labels(PATH)

    def handle(request: HttpRequest) -> HttpAnswer | Handler | None:
        answer = partial(_answer, time.monotonic())
        received_ms = heartbeats.clock()
        try:
            pod = heartbeats.known(_authorization(request))
            if pod is None:
                return lambda _: reviewed(request, received_ms, answer)
            submit(request, pod, received_ms, answer)
            return None
        except Problem as problem:
            return answer(problem)

    def reviewed(request: HttpRequest, received_ms: int, answer: "partial[HttpAnswer]") -> HttpAnswer | None:
        try:
            submit(request, heartbeats.pod(_authorization(request)), received_ms, answer)
            return None
        except Problem as problem:
            return answer(problem)
        except Exception as error:
            log_exception("internal-error", error, route=PATH)
            return answer(Problem(500, "internal error; the timekeeper's log has the details"))

    def submit(request: HttpRequest, pod: BoundPod, received_ms: int, answer: "partial[HttpAnswer]") -> None:
        heartbeats.submit(pod, request.body, received_ms, lambda outcome: request.reply(answer(outcome)))

    def _answer(began_s: float, outcome: bytes | Problem) -> HttpAnswer:
        made = outcome.http_answer() if isinstance(outcome, Problem) else _ok(outcome)
        metrics.REQUESTS.labels(PATH, str(made.status.value)).inc()
        seconds.observe(time.monotonic() - began_s)
        return made

    return Route("POST", PATH, handle)


def _ok(body: bytes) -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, "application/json", body)


def _authorization(request: HttpRequest) -> str:
    return request.head.fields.get("AUTHORIZATION", "")


def serve(settings: TimekeeperSettings, sockets: Sequence[int] = (), leash: int | None = None) -> None:
    """Serves until SIGTERM. ``sockets``: listeners that were opened before, as file descriptors. ``leash``:
    see `parent_death.hold`. Raises UnusableError if the settings cannot be followed."""
    with closing(open_store(settings.database)) as store:  # no connection is open at the fork
        refuse_former(store)
    connect(settings.kubeconfig)  # each worker connects for itself; here only to fail early, with a sentence
    if not settings.is_local:
        check_files(settings.tls_cert, settings.tls_key, settings.ca)
    check_oidc_files(settings.oidc)
    limits = HttpLimits(LARGEST_BODY, _allowed_connections(), keep_alive_s=_KEEP_ALIVE_S)
    addresses = [address for address in (settings.listen, settings.aggregated_listen) if address is not None]
    sockets = sockets or [listening_socket(*address).detach() for address in addresses]
    options = {
        "bind": [f"fd://{number}" for number in sockets],
        "workers": settings.workers,
        "timeout": 30,
        # no worker's collector looks at what is there before the fork, which would take a tenth of a second
        "when_ready": lambda _arbiter: gc.freeze(),
        "post_fork": lambda _server, _worker: (
            None if leash is None else parent_death.hold(leash, metrics_folder.remove_ours)
        ),
    }
    HttpServer(
        lambda: make_service(settings, limits),
        options,
        balance=ConnectionBalance(_TOLERANCE),
        worker_ended=_forget_gauges,
    ).run()


def make_service(settings: TimekeeperSettings, limits: HttpLimits) -> HttpService:
    """The API of one worker. It opens connections, so it is made after the fork."""
    api = connect(settings.kubeconfig)

    api.call("GET", "/version", timeout_s=CALL_S)  # the first look at its clock
    now_ms = api.clock.now_ms

    def count(kind: str, outcome: str) -> None:
        metrics.REVIEWS.labels(kind, outcome).inc()

    store = open_store(settings.database, connections=settings.database_connections)
    logins = LoginSessions(store, now_ms)
    watch = DamageWatch(lambda: damage_of(store))
    if not store.is_shared:  # PostgreSQL checks its own pages
        watch.start()
    ca = newest_text(Path(settings.ca))
    services = create_services(
        store,
        _gate(settings, api, count, logins),
        now_ms,
        ca,
        settings.heartbeat_interval_ms,
        lambda: watch.damage,
        api.clock.sentence,
        peers(settings.webhook_url, settings.extender_url, settings.token_file, ca),
        settings.metrics_access == "open",
        settings.only_meter,
        families(settings.listen[0]),
        settings.retain_use_ms,
    )
    services.ledger.load()
    services.readiness.start()
    Thread(target=keep_reporting, args=(services, time.sleep), name="refused", daemon=True).start()
    heartbeats = HeartbeatHandler(services)
    beside = (aggregated_service(settings, api, services, count),) if settings.aggregated_listen else ()
    return HttpService(
        with_dashboard(
            app_of(services),
            now_ms,
            settings.only_meter,
            _token_file(settings),
            OidcLogin(settings.oidc, logins, now_ms) if settings.oidc.issuer else None,
            services.ledger.zone_now,
            services.gate,
        ),
        settings.threads,
        limits,
        routes=(heartbeat_route(heartbeats), *probes(services.readiness)),
        tls=None if settings.is_local else newest_context(Path(settings.tls_cert), Path(settings.tls_key)),
        refusal=refusal,
        beside=beside,
    )


def _token_file(settings: TimekeeperSettings) -> str:
    return str(settings.local_token.resolve()) if settings.is_local else ""


def _gate(settings: TimekeeperSettings, api: Api, count: Count, logins: LoginSessions) -> Gate:
    if settings.is_local:
        return local_gate(settings.local_token.read_text(), api.clock.now_ms)
    return gate_of(api, count, logins.caller)


def _allowed_connections() -> int:
    """How many clients a worker may have at a time: each is an open file."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS + _OTHER_FILES
    allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    if now != resource.RLIM_INFINITY and now < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    return max(_OTHER_FILES // 4, allowed - _OTHER_FILES)


def _forget_gauges(pid: int) -> None:
    """A worker that ended leaves no gauges behind."""
    if metrics_folder.VARIABLE in os.environ:
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
