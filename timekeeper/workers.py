"""The serving workers: the REST API on gunicorn, over TLS with the newest certificate on disk."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from prometheus_client import multiprocess

from timekeeper.api_server import connect
from timekeeper.app import create_app
from timekeeper.app.gate import Gate
from timekeeper.app.tokens import Expected, issuer_of
from timekeeper.clock import now_ms
from timekeeper.settings import FIGURES_FOLDER, Settings
from timekeeper.store.engine import open_store

# Longer than sidecars wait between beats, so that their connections live on; shorter than idle ones may cost.
_KEEP_ALIVE_S = 75
_END_WITHIN_S = 3
_CONNECTIONS = 4_000  # of one worker at a time, most of them idle


def serve(settings: Settings) -> None:
    """Serve until SIGTERM. Raises ValueError with a sentence where the settings cannot be followed."""
    connect(settings.kubeconfig)  # each worker connects for itself; here only to fail early, with a sentence
    _Workers(settings).run()


def build(settings: Settings) -> Flask:
    """The API of one worker. To be called after the fork: it opens connections of its own."""
    api = connect(settings.kubeconfig)
    expected = Expected(settings.audience, settings.issuer or issuer_of(api.token))
    return create_app(
        open_store(settings.database),
        Gate(api.post, expected, now_ms),
        now_ms,
        newest_text(Path(settings.ca)),
        settings.heartbeat_interval_ms,
    )


class _Workers(BaseApplication):  # type: ignore[misc]
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        given = self._settings
        listens = f"fd://{given.socket_fd}" if given.socket_fd is not None else f"{given.host}:{given.port}"
        context = newest_context(Path(given.tls_cert), Path(given.tls_key))
        for name, value in {
            "bind": [listens],
            "workers": given.workers,
            "worker_class": "gthread",
            "threads": given.threads,
            "worker_connections": _CONNECTIONS,
            "keepalive": _KEEP_ALIVE_S,
            "timeout": 30,
            "graceful_timeout": _END_WITHIN_S,
            "certfile": given.tls_cert,
            "keyfile": given.tls_key,
            "ssl_context": lambda _config, _default: context(),
            "control_socket_disable": True,
            "loglevel": "warning",
            "child_exit": _forget,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return build(self._settings)


def newest_context(certificate: Path, key: Path) -> Callable[[], ssl.SSLContext]:
    """A function that gives the server's TLS context, made anew when the files have changed: a rotated
    certificate is served from the next connection on.

    Where the new files do not fit together (they are replaced one after the other), the last good context
    stays.
    """
    kept: dict[str, Any] = {"stamp": None, "context": None}

    def context() -> ssl.SSLContext:
        stamp = (_stamp(certificate), _stamp(key))
        if stamp != kept["stamp"]:
            made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            made.minimum_version = ssl.TLSVersion.TLSv1_2
            try:
                made.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError):
                if kept["context"] is None:
                    raise
            else:
                kept.update(stamp=stamp, context=made)
        current: ssl.SSLContext = kept["context"]
        return current

    return context


def newest_text(path: Path) -> Callable[[], str]:
    """A function that gives a file's text, read anew when it has changed; empty where there is no such
    file."""
    kept: dict[str, Any] = {"stamp": None, "text": ""}

    def text() -> str:
        stamp = _stamp(path)
        if stamp != kept["stamp"]:
            kept.update(stamp=stamp, text=path.read_text() if stamp else "")
        return str(kept["text"])

    return text


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is replaced or rewritten; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _forget(_server: object, worker: Any) -> None:
    """A worker that ended leaves no gauges behind."""
    if FIGURES_FOLDER in os.environ:
        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
