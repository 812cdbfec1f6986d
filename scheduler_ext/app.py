"""The extender's routes. What decides is behind `Verbs`; here are bodies, codes and log lines."""

import time
from collections.abc import Callable

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from scheduler_ext import wire
from scheduler_ext.log import Log
from scheduler_ext.metrics import Metrics
from scheduler_ext.verbs import INCOMPLETE, Verbs
from scheduler_ext.view import ClusterView
from timekeeper.core.request import mapping

Answer = tuple[
    bytes, str, dict[str, object]
]  # body, result for the metrics, fields for the log (none: no line)


def create_app(verbs: Verbs, cluster: Callable[[], ClusterView], metrics: Metrics, log: Log) -> Flask:
    """The WSGI application: POST /filter, /prioritize, /bind, GET /v1/cluster, /livez, /readyz, /metrics.

    A verb that can say no says it with 200: of any other answer kube-scheduler hides the text.
    """
    app = Flask("scheduler_ext", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = wire.MOST_BODY_BYTES

    def answered(verb: str, answer: Callable[[bytes], Answer]) -> Response:
        started = time.perf_counter()
        try:
            body, result, fields = answer(request.get_data(cache=False))
        except wire.MalformedError as error:
            metrics.answered(verb, "malformed", time.perf_counter() - started)
            log("malformed", verb=verb, reason=error)
            return _said(400, f"malformed body: {error}")
        seconds = time.perf_counter() - started
        metrics.answered(verb, result, seconds)
        if fields:
            log(verb, result=result, **fields, ms=f"{1000 * seconds:.2f}")
        return Response(body, mimetype="application/json")

    @app.post("/filter")
    def filter_nodes() -> Response:
        return answered("filter", lambda body: _filter(verbs, body))

    @app.post("/prioritize")
    def prioritize() -> Response:
        return answered("prioritize", lambda body: _prioritize(verbs, body))

    @app.post("/bind")
    def bind() -> Response:
        return answered("bind", lambda body: _bind(verbs, body))

    @app.get("/v1/cluster")
    def view() -> Response:
        if not verbs.complete:
            return _said(503, INCOMPLETE)
        return Response(orjson.dumps(cluster()), mimetype="application/json")

    @app.get("/livez")
    def livez() -> Response:
        return _said(200, "ok")

    @app.get("/readyz")
    def readyz() -> Response:
        return _said(200, "ok") if verbs.complete else _said(503, INCOMPLETE)

    @app.get("/metrics")
    def exposition() -> Response:
        return Response(metrics.exposition(), mimetype="text/plain")

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        return _said(error.code or 500, f"{error.name}: {error.description}")

    return app


def _filter(verbs: Verbs, body: bytes) -> Answer:
    asked = wire.read_asked(body)
    found = verbs.filter(asked)
    fields = _named(asked) | {"nodes": len(asked.names)}
    if isinstance(found, str):
        return wire.filter_error(found), "error", fields | {"error": found}
    if found.fits or not asked.names:
        return wire.filter_answer(asked, found), "fit", fields | {"fit": len(found.fits)}
    reason = next(iter({**found.short, **found.refused}.values()))
    return wire.filter_answer(asked, found), "none", fields | {"reason": reason}


def _prioritize(verbs: Verbs, body: bytes) -> Answer:
    asked = wire.read_asked(body)
    return wire.prioritize_answer(asked.names, verbs.prioritize(asked)), "fit", {}


def _bind(verbs: Verbs, body: bytes) -> Answer:
    order = wire.read_order(body)
    error = verbs.bind(order)
    fields: dict[str, object] = {
        "pod": f"{order.namespace}/{order.name}",
        "uid": order.uid,
        "node": order.node,
    }
    return (
        wire.bind_answer(error),
        "refused" if error else "bound",
        fields | ({"error": error} if error else {}),
    )


def _named(asked: wire.Asked) -> dict[str, object]:
    metadata = mapping(asked.pod.get("metadata"))
    return {"pod": f"{metadata.get('namespace')}/{metadata.get('name')}", "uid": metadata.get("uid")}


def _said(status: int, sentence: str) -> Response:
    return Response(sentence + "\n", status=status, mimetype="text/plain")
