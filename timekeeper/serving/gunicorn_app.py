"""The serving workers: the REST API on gunicorn, over TLS with the newest certificate on disk."""

import os
import resource
import ssl
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flask import Flask
from gunicorn import util
from gunicorn.app.base import BaseApplication
from gunicorn.http import errors
from prometheus_client import multiprocess

from timekeeper.api.auth.gate import Gate
from timekeeper.api.auth.tokens import Expected, issuer_of
from timekeeper.api.create_app import create_app
from timekeeper.api.problem import CONTENT_TYPE, Problem
from timekeeper.api_server import connect
from timekeeper.runtime import parent_death
from timekeeper.runtime.clock import now_ms
from timekeeper.runtime.log import log
from timekeeper.runtime.server_log import ServerLogger
from timekeeper.serving.connection import BoundedSocket
from timekeeper.serving.seats import Seats
from timekeeper.serving.tls import check_files, newest_context, newest_text
from timekeeper.serving.worker import LoopWorker
from timekeeper.settings import FIGURES_FOLDER, Settings
from timekeeper.store.engine.engine import open_store

# Longer than sidecars wait between beats, so that their connections live on; shorter than idle ones may cost.
_KEEP_ALIVE_S = 75
_END_WITHIN_S = 3
_CONNECTIONS = 4_000  # of one worker at a time, most of them idle
_OTHER_FILES = 200  # of one worker: the database, the API server, figures


def serve(settings: Settings) -> None:
    """Serve until SIGTERM. Raises UnusableError with a sentence where the settings cannot be followed."""
    connect(settings.kubeconfig)  # each worker connects for itself; here only to fail early, with a sentence
    check_files(settings.tls_cert, settings.tls_key, settings.ca)
    _Workers(settings, _allowed_connections()).run()


def build(settings: Settings) -> Flask:
    """The API of one worker. To be called after the fork: it opens connections of its own."""
    api = connect(settings.kubeconfig)
    expected = Expected(settings.audience, settings.issuer or issuer_of(api.token))
    return create_app(
        open_store(settings.database, connections=settings.database_connections),
        Gate(api.post, expected, now_ms),
        now_ms,
        newest_text(Path(settings.ca)),
        settings.heartbeat_interval_ms,
    )


def _allowed_connections() -> int:
    """How many clients a worker may have at a time: each is an open file."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS + _OTHER_FILES
    allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    if now != resource.RLIM_INFINITY and now < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    return max(_OTHER_FILES // 4, allowed - _OTHER_FILES)


class Worker(LoopWorker):
    """Ours, which says in our form what is wrong with a request that reaches no route."""

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Exception) -> None:
        """Answer 4xx or 5xx and let the connection be closed."""
        status = _status_of(exc)
        if status is None:
            super().handle_error(req, client, addr, exc)
            return
        log("malformed-request", level="warning", peer=(addr or ("",))[0], status=int(status), error=exc)
        body = Problem(status, f"the request cannot be read: {exc}").body()
        head = f"HTTP/1.1 {status:d} {status.phrase}\r\nConnection: close\r\nContent-Type: {CONTENT_TYPE}\r\n"
        with suppress(OSError):
            util.write_nonblock(client, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def _status_of(error: Exception) -> HTTPStatus | None:
    """What a request that cannot be read is answered with; None for faults that are not the request's."""
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return None


_STATUSES: tuple[tuple[type[Exception], HTTPStatus | None], ...] = (
    (errors.ConfigurationProblem, None),
    (errors.InvalidResponseHeader, None),
    (errors.InvalidResponseHeaderName, None),
    (errors.LimitRequestLine, HTTPStatus.REQUEST_URI_TOO_LONG),
    (errors.LimitRequestHeaders, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    (errors.UnsupportedTransferCoding, HTTPStatus.NOT_IMPLEMENTED),
    (errors.ExpectationFailed, HTTPStatus.EXPECTATION_FAILED),
    (errors.ParseException, HTTPStatus.BAD_REQUEST),
)


class _Workers(BaseApplication):  # type: ignore[misc]
    def __init__(self, settings: Settings, connections: int) -> None:
        self._settings = settings
        self._connections = connections
        self.seats = Seats()
        super().__init__()

    def load_config(self) -> None:
        given = self._settings
        listens = f"fd://{given.socket_fd}" if given.socket_fd is not None else f"{given.host}:{given.port}"
        newest = newest_context(Path(given.tls_cert), Path(given.tls_key))

        def context() -> ssl.SSLContext:
            made = newest()
            made.sslsocket_class = BoundedSocket
            return made

        for name, value in {
            "bind": [listens],
            "workers": given.workers,
            "worker_class": "timekeeper.serving.gunicorn_app.Worker",
            "threads": given.threads,
            "worker_connections": self._connections,
            "keepalive": _KEEP_ALIVE_S,
            "timeout": 30,
            "graceful_timeout": _END_WITHIN_S,
            "certfile": given.tls_cert,
            "keyfile": given.tls_key,
            "ssl_context": lambda _config, _default: context(),
            "control_socket_disable": True,
            "loglevel": "warning",
            "logger_class": ServerLogger,
            "child_exit": _forget,
            "post_fork": lambda _server, _worker: parent_death.hold() if given.leash else None,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return build(self._settings)


def _forget(_server: object, worker: Any) -> None:
    """A worker that ended holds no connections and leaves no gauges behind."""
    worker.app.seats.leave(worker.age)
    if FIGURES_FOLDER in os.environ:
        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
