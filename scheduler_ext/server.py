"""Serves the extender: gunicorn's master and its one worker, whose threads share the `ClusterCache`."""

import gc
import ssl
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler_ext.log import log
from scheduler_ext.settings import TLS, ExtenderSettings, ReadPortSettings
from scheduler_ext.verbs.protocol import MAX_BODY_BYTES
from timekeeper.edge.clock import monotonic_ms
from timekeeper.runtime.auth.gate import gate_of
from timekeeper.runtime.connect import connect
from timekeeper.runtime.file_watch import FileWatch
from timekeeper.runtime.http.server import HttpServer, listening_socket
from timekeeper.runtime.http.service import HttpLimits, HttpService
from timekeeper.runtime.tls import server_context

if TYPE_CHECKING:
    from scheduler_ext.assembly.extender import Extender

# New objects. Verbs and events leave no cycles (a test counts), and a GET leaves eight small
# objects of the router's. A full collection would stop all threads for a second, once objects have changed.
COLLECT_AFTER = 50_000
# the same until the first lists are in the cache: nearly all new objects stay
COLLECT_AT_START_AFTER = 1_000_000

# A thread that computes lets a waiting one run after this time. Python's 5 ms delayed the slowest filters.
SWITCH_AFTER_S = 0.001
# the same until then: each switch loses what the processor had at hand
SWITCH_AT_START_AFTER_S = 0.02

_READ_THREADS = 8
_LIMITS = HttpLimits(MAX_BODY_BYTES, connections=512, unanswered_bytes=8 * MAX_BODY_BYTES)


def serve(settings: ExtenderSettings) -> int:
    """Serves until SIGTERM and returns 0. Raises CannotListenError or UnusableError before anything is
    started."""
    listeners = [listening_socket(*settings.listen)]
    reading = settings.read_port
    if reading.listen is not None:
        listeners.append(listening_socket(*reading.listen))
    api = connect(settings.kubeconfig, connections=settings.threads + 16)
    stops: list[Callable[[], None]] = []

    def make_service() -> HttpService:
        """In the worker, after the fork: the watches live there."""
        from scheduler_ext.assembly.extender import Extender
        from scheduler_ext.serving.routes import verb_routes

        gc.set_threshold(COLLECT_AT_START_AFTER, 20, 100)
        sys.setswitchinterval(SWITCH_AT_START_AFTER_S)
        extender = Extender(settings, api, complete=_freeze)
        extender.start()
        stops.append(extender.stop)
        return HttpService(
            extender.app,
            _READ_THREADS,
            _LIMITS,
            verb_routes(extender.calls, settings.threads),
            tls=_newest_context(settings.tls) if settings.tls else None,
            ends_connections=extender.sends_away,
            beside=(_read_service(settings, reading, extender),) if reading.listen else (),
        )

    options = {
        "bind": [f"fd://{each.detach()}" for each in listeners],
        "workers": 1,
        "proc_name": "bursar-extender",
        "when_ready": lambda _arbiter: log("serving", address=":".join(map(str, settings.listen))),
        "worker_exit": lambda _arbiter, _worker: [stop() for stop in stops],  # after the last answer
    }
    HttpServer(make_service, options).run()
    return 0


def _read_service(settings: ExtenderSettings, reading: ReadPortSettings, extender: "Extender") -> HttpService:
    """Its reviews have connections to the API server of their own: no bind waits for one of them."""
    from scheduler_ext.serving.read_port import read_service

    files = (reading.tls_cert, reading.tls_key)
    tls = FileWatch(files, lambda: server_context(*files), monotonic_ms, log, every_ms=1_000)
    gate = gate_of(connect(settings.kubeconfig, connections=4))
    return read_service(gate, extender.read_sources, tls)


def _newest_context(tls: TLS) -> FileWatch[ssl.SSLContext]:
    """The TLS context; a connection after a renewal gets the renewed certificate."""
    files = (tls.certificate, tls.key, tls.client_ca)
    return FileWatch(files, lambda: server_context(*files), monotonic_ms, log, every_ms=0)


def _freeze() -> None:
    """What is known at the start mostly stays: the collector need not look at it again. It does not collect
    before, for all threads would wait for that."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 100)
    sys.setswitchinterval(SWITCH_AFTER_S)
