"""``POST /v1/heartbeats``: a pod's sidecar says that the pod ran. Who it is stands in its token alone."""

import orjson
from flask import Flask, Response, request

from timekeeper import metrics
from timekeeper.app.bodies import read_heartbeats
from timekeeper.app.body import read_body
from timekeeper.app.problem import Problem
from timekeeper.app.services import Services
from timekeeper.core.wire import HeartbeatAnswer
from timekeeper.store.beats import Answered, Heard, Post

# A sidecar is sent the CA bundle with every so manieth post: a changed one reaches it long before the old
# expires.
_CA_EACH = 50


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    @app.post("/v1/heartbeats")
    def heartbeats() -> Response:
        received_ms = services.clock()
        pod = services.gate.pod(request.headers.get("Authorization"))
        beats = read_heartbeats(read_body())
        post = Post(pod.uid, beats.boot, beats.sequence, beats.ages_ms, received_ms)
        answered, standing = written(services, post)
        answer: HeartbeatAnswer = {
            "version": 1,
            "interval_ms": services.heartbeat_interval_ms,
            "in_budget": standing != "OVER_BUDGET",
        }
        if answered.over:
            answer["over"] = True
        ca = services.ca() if beats.sequence % _CA_EACH == 1 else ""
        if ca:
            answer["ca"] = ca
        return Response(orjson.dumps(answer), content_type="application/json")


def written(services: Services, post: Post) -> tuple[Answered, str]:
    """Write a post; tell what became of it and its namespace's standing. Raises a Problem where the ledger
    does not know the pod: its sidecar keeps its beats and tries again."""
    answered, standing = services.beating.record(post)
    metrics.HEARTBEATS.labels(answered.heard.value).inc()
    if answered.heard is Heard.UNKNOWN:
        raise Problem(404, "the ledger has no session of this pod, or not yet", "pod")
    return answered, standing
