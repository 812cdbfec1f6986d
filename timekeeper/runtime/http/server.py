"""gunicorn's master and its workers around one `HttpService`."""

import os
from collections.abc import Callable
from typing import Any

from gunicorn.app.base import BaseApplication

from timekeeper.runtime.http.connection_balance import ConnectionBalance
from timekeeper.runtime.http.server_log import ServerLogger
from timekeeper.runtime.http.service import HttpService
from timekeeper.runtime.http.worker import HttpWorker

_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 a folder in memory, if there is one


class HttpServer(BaseApplication):  # type: ignore[misc]
    """``run()`` serves until SIGTERM. ``make_service`` is called in each worker, after the fork;
    ``options`` are gunicorn's; ``worker_ended`` is called in the master with the worker's process ID."""

    def __init__(
        self,
        make_service: Callable[[], HttpService],
        options: dict[str, Any],
        *,
        balance: ConnectionBalance | None = None,
        worker_ended: Callable[[int], object] = lambda _pid: None,
    ) -> None:
        self._make_service, self._options, self._worker_ended = make_service, options, worker_ended
        self.balance = balance or ConnectionBalance()
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        common: dict[str, Any] = {
            "worker_class": HttpWorker,
            # on a slow disk the workers' signs of life would come late, and they would be killed
            "worker_tmp_dir": _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None,
            "loglevel": "warning",
            "logger_class": ServerLogger,
            "graceful_timeout": 5,
            "timeout": 60,
            "control_socket_disable": True,
            "child_exit": self._ended,
        }
        for name, value in (common | self._options).items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Called by gunicorn in each worker, after the fork."""
        self.service = self._make_service()
        return self.service.app

    def _ended(self, _arbiter: object, worker: Any) -> None:
        self.balance.leave(worker.age)
        self._worker_ended(worker.pid)
