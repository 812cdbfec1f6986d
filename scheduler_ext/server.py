"""Serves the extender: gunicorn's master and its one worker, whose threads share the books."""

import gc
import socket
import ssl
from collections.abc import Callable
from typing import Any

from gunicorn.app.base import BaseApplication

from scheduler_ext.serving.worker import ConnectionWorker
from scheduler_ext.settings import Settings
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.log import log
from timekeeper.runtime.server_log import ServerLogger

COLLECT_AFTER = 50_000  # new objects; values in the books have no cycles, so there is little to collect


class CannotServeError(Exception):
    """The address cannot be listened on; the text is for the person who started us."""


def serve(settings: Settings) -> int:
    """Serves until SIGTERM and returns 0. Raises CannotServeError or NoConfigurationError before anything is
    started."""
    listener = _listening(settings)
    api = Api(settings.kubeconfig, connections=settings.threads + 16)
    _Server(settings, api, listener).run()
    return 0


class _Server(BaseApplication):  # type: ignore[misc]
    """gunicorn's application."""

    def __init__(self, settings: Settings, api: Api, listener: socket.socket) -> None:
        self._settings, self._api, self._listener = settings, api, listener
        self._stop: Callable[[], None] = _nothing
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        for name, value in self._options().items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Called by gunicorn in the worker, after the fork: the watches live there."""
        from scheduler_ext.assembly import Extender

        gc.set_threshold(COLLECT_AFTER, 20, 100)
        extender = Extender(self._settings, self._api, complete=_settle)
        extender.start()
        self.calls, self.sends_away = extender.app.extensions["calls"], extender.sends_away
        self._stop = extender.stop
        return extender.app

    def _options(self) -> dict[str, Any]:
        options = {
            "bind": f"fd://{self._listener.detach()}",
            "workers": 1,
            "worker_class": ConnectionWorker,
            "threads": self._settings.threads,
            "proc_name": "bursar-extender",
            "loglevel": "warning",
            "logger_class": ServerLogger,
            "graceful_timeout": 5,
            "timeout": 60,
            "control_socket_disable": True,
            "when_ready": self._ready,
            "worker_exit": self._ended,
        }
        tls = self._settings.tls
        if tls is not None:
            options |= {
                "certfile": str(tls.certificate),
                "keyfile": str(tls.key),
                "ca_certs": str(tls.client_ca),
                "cert_reqs": ssl.CERT_REQUIRED,
                "ssl_context": _context,
            }
        return options

    def _ended(self, _arbiter: object, _worker: object) -> None:
        """Called by gunicorn in the worker, after the last answer."""
        self._stop()

    def _ready(self, _arbiter: object) -> None:
        log("serving", address=f"{self._settings.host}:{self._settings.port}")


def _nothing() -> None:
    """What ends a worker that never began."""


def _context(_config: object, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Made for each connection, so that a renewed certificate is the one that is shown."""
    context = default()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _listening(settings: Settings) -> socket.socket:
    """The listening socket, so that a taken port is known before anything is started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise CannotServeError(f"cannot listen on {where}: {error.strerror or error}") from error
    return listener


def _settle() -> None:
    """What is known at the start mostly stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
