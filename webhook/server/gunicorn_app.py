"""Serves the webhook: gunicorn's master and its workers."""

import gc
import os
import ssl

from timekeeper.core.certificate_end import ends
from timekeeper.edge.clock import monotonic_ms
from timekeeper.runtime.file_watch import FileWatch
from timekeeper.runtime.http.server import HttpServer, listening_socket
from timekeeper.runtime.http.service import HttpService
from timekeeper.runtime.metrics_folder import VARIABLE, metrics_folder
from timekeeper.runtime.tls import server_context
from webhook.log import log
from webhook.settings.serve import WebhookSettings


def serve(settings: WebhookSettings) -> int:
    """Serves until SIGTERM and returns 0. Raises CannotListenError before anything is started."""
    listener = listening_socket(*settings.listen)
    with metrics_folder("bursar-webhook-") as folder:
        os.environ[VARIABLE] = str(folder)
        _server(settings, listener.detach()).run()
    return 0


def _server(settings: WebhookSettings, listener_fd: int) -> HttpServer:
    from prometheus_client.multiprocess import mark_process_dead

    from webhook import metrics  # before the fork, so that the workers share its memory
    from webhook.server import wiring

    def make_service() -> HttpService:
        worker_metrics = metrics.of_all_workers()

        def load() -> ssl.SSLContext:
            context = server_context(settings.tls_cert, settings.tls_key, settings.client_ca, required=False)
            worker_metrics.certificate_loaded(ends(settings.tls_cert.read_text(encoding="ascii"))[0])
            return context

        files = tuple(filter(None, (settings.tls_cert, settings.tls_key, settings.client_ca)))
        return wiring.make_service(settings, worker_metrics, FileWatch(files, load, monotonic_ms, log))

    def ready(_arbiter: object) -> None:
        gc.freeze()  # what is here before the fork stays shared: no worker's collector writes to it
        log("serving", address=":".join(map(str, settings.listen)))

    options = {
        "bind": f"fd://{listener_fd}",
        "workers": settings.workers,
        "proc_name": "bursar-webhook",
        "when_ready": ready,
    }
    return HttpServer(make_service, options, worker_ended=mark_process_dead)
