"""``POST /v1/heartbeats`` without Flask: the loop reads a post, and the writer's thread replies once the
post's group is on the disk."""

import time
from functools import partial
from http import HTTPStatus

from timekeeper import metrics
from timekeeper.api.resources.heartbeats import PATH, HeartbeatHandler
from timekeeper.runtime.auth.gate import BoundPod
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.http.service import Handler, HttpAnswer, HttpRequest, Route
from timekeeper.runtime.log import log_exception


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
