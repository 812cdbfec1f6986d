"""``GET /metrics``: the figures of all workers, for callers that may read metrics (docs/decisions/0051)."""

from http import HTTPStatus

from timekeeper.core.names import AUDIENCE
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.auth.gate import METRICS, gate_of
from timekeeper.runtime.http.problem_details import Problem, unavailable
from timekeeper.runtime.http.service import HttpAnswer, HttpRequest, Route
from webhook.metrics import FiguresGoneError, WebhookMetrics

_THREADS = 1  # of its own: neither reviews nor probes wait for the API server's answer about a reader


def metrics_route(metrics: WebhookMetrics, is_open: bool, api: Api | None) -> Route:
    """The route of one worker. ``is_open``: callers need no token. ``api``: the API server that reviews the
    others' tokens; without it they get 503."""
    gate = None if api is None or is_open else gate_of(api, AUDIENCE)

    def answer(request: HttpRequest) -> HttpAnswer:
        try:
            if gate is not None:
                gate.allow_metrics(request.head.fields.get("AUTHORIZATION"))
            elif not is_open:
                raise unavailable(
                    "the webhook has no way to the API server, which would review your token: give it a"
                    " service account or --kubeconfig, or set --metrics-access=open"
                )
            return HttpAnswer(HTTPStatus.OK, "text/plain; charset=utf-8", metrics.exposition())
        except Problem as problem:
            return problem.http_answer()
        except FiguresGoneError:
            gone = "the folder with the workers' figures was removed; restart the webhook"
            return unavailable(gone).http_answer()

    return Route("GET", METRICS, answer, _THREADS)
