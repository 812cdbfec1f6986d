"""Serves the webhook: gunicorn's master and its workers."""

import gc
import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable
from datetime import datetime
from typing import Any

from gunicorn.app.base import BaseApplication

from timekeeper.runtime.clock import monotonic_ms
from timekeeper.runtime.log import log
from timekeeper.runtime.server_log import ServerLogger
from webhook.reloaded import Reloaded, expiry, server_context
from webhook.server.seats import Seats
from webhook.server.worker import ReviewWorker
from webhook.settings.settings import WebhookSettings

_IN_MEMORY = "/dev/shm"  # noqa: S108 a folder in memory, where there is one


class CannotServeError(Exception):
    """The address cannot be listened on; the text is for the person who started us."""


def serve(settings: WebhookSettings) -> int:
    """Serves until SIGTERM and returns 0. Raises CannotServeError before anything is started."""
    listener = _listening(settings)
    folder = tempfile.mkdtemp(prefix="bursar-webhook-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # the metrics library looks at this when it is imported
    master = os.getpid()
    try:
        _Server(settings, listener).run()
    finally:
        if os.getpid() == master:  # a worker ends through here too
            shutil.rmtree(folder, ignore_errors=True)
    return 0


class _Server(BaseApplication):  # type: ignore[misc]
    """gunicorn's application; ``certificates`` gives the TLS context of this moment to `ReviewWorker`,
    ``reviews`` is what it asks for the answers to reviews, and ``seats`` are what its workers share."""

    def __init__(self, settings: WebhookSettings, listener: socket.socket) -> None:
        from prometheus_client import multiprocess

        from webhook import metrics  # before the fork, so that the workers share their memory
        from webhook.server import wiring

        self._settings, self._listener = settings, listener
        self.seats = Seats()
        self._application, self._mark_dead = wiring.application, multiprocess.mark_process_dead
        self._make_metrics = metrics.of_all_workers
        self._tell_expiry: Callable[[datetime], None] = lambda _: None
        self.certificates = Reloaded[ssl.SSLContext](
            (settings.certificate, settings.key), self._certificate, monotonic_ms, log
        )
        super().__init__()

    def _certificate(self) -> ssl.SSLContext:
        context = server_context(self._settings.certificate, self._settings.key)
        self._tell_expiry(expiry(self._settings.certificate))
        return context

    def load_config(self) -> None:
        """Called by gunicorn."""
        for name, value in {
            "bind": f"fd://{self._listener.detach()}",
            "workers": self._settings.workers,
            "worker_class": ReviewWorker,
            "worker_tmp_dir": _memory_folder(),
            "proc_name": "bursar-webhook",
            "loglevel": "warning",
            "logger_class": ServerLogger,
            "forwarded_allow_ips": "",  # nobody's word is taken for whom a request comes from
            "graceful_timeout": 5,
            "timeout": 60,
            "control_socket_disable": True,
            "when_ready": self._ready,
            "child_exit": self._forget,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Called by gunicorn in each worker, after the fork."""
        metrics = self._make_metrics()
        self._tell_expiry = metrics.certificate_loaded
        app = self._application(self._settings, metrics)
        self.reviews = app.wsgi_app
        return app

    def _ready(self, _arbiter: object) -> None:
        gc.freeze()  # what is here before the fork stays shared: no worker's collector writes to it
        log("serving", address=f"{self._settings.host}:{self._settings.port}")

    def _forget(self, _arbiter: object, worker: Any) -> None:
        self.seats.leave(worker.age)
        self._mark_dead(worker.pid)  # type: ignore[no-untyped-call] # takes its gauges out of the sums


def _listening(settings: WebhookSettings) -> socket.socket:
    """The listening socket, so that a taken port is known before anything is started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise CannotServeError(f"cannot listen on {where}: {error.strerror or error}") from error
    return listener


def _memory_folder() -> str | None:
    """Where the workers' signs of life are written, for a slow disk would look like a dead worker."""
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
