"""Serves the extender: gunicorn's master and its one worker, whose threads share the books."""

import gc
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from gunicorn.app.base import BaseApplication

from scheduler_ext import log
from scheduler_ext.api import Api
from scheduler_ext.settings import Settings

KEEP_ALIVE_S = 100  # longer than kube-scheduler keeps an idle connection: it must be the one who closes
SILENT_S = 5  # a caller that stops in the middle of a request does not hold a thread for longer
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
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        for name, value in self._options().items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Called by gunicorn in the worker, after the fork: the watches live there."""
        from scheduler_ext.assembly import Extender

        gc.set_threshold(COLLECT_AFTER, 20, 100)
        extender = Extender(self._settings, self._api)
        extender.start()
        return extender.app

    def _options(self) -> dict[str, Any]:
        options = {
            "bind": f"fd://{self._listener.detach()}",
            "workers": 1,
            "worker_class": "gthread",
            "threads": self._settings.threads,
            "keepalive": KEEP_ALIVE_S,
            "proc_name": "bursar-extender",
            "loglevel": "warning",
            "graceful_timeout": 5,
            "timeout": 60,
            "control_socket_disable": True,
            "when_ready": self._ready,
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

    def _ready(self, _arbiter: object) -> None:
        log.to_stderr("serving", address=f"{self._settings.host}:{self._settings.port}")


class _Patient(ssl.SSLSocket):
    """Never waits for a caller without end, be it in the handshake: of a socket that blocks, TLS would ask
    again and again."""

    def settimeout(self, value: float | None) -> None:
        super().settimeout(SILENT_S if value is None else value)

    def setblocking(self, flag: bool) -> None:
        self.settimeout(None if flag else 0.0)


def _context(_config: object, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Made for each connection, so that a renewed certificate is the one that is shown."""
    context = default()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _Patient
    return context


def _listening(settings: Settings) -> socket.socket:
    """The listening socket, so that a taken port is known before anything is started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # accepted sockets inherit it; what a client sends after that is no longer waited for
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SILENT_S, 0))
        listener.bind((settings.host, settings.port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise CannotServeError(f"cannot listen on {where}: {error.strerror or error}") from error
    return listener
