"""The extender's routes. What decides is behind `Verbs`; here are bodies, codes and log lines."""

import time
from collections.abc import Callable
from http import HTTPStatus

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from scheduler_ext.reports.metrics import Metrics
from scheduler_ext.serving.connection import Calls, Said
from scheduler_ext.serving.read_routes import Pages, register, said
from scheduler_ext.verbs import protocol as wire
from scheduler_ext.verbs.last_decisions import LastDecisions
from scheduler_ext.verbs.verbs import INCOMPLETE, Verbs
from timekeeper.core.request.request import mapping
from timekeeper.runtime.log import Log

Answer = tuple[
    bytes, str, dict[str, object]
]  # body, result for the metrics, fields for the log (none: no line)


def create_app(verbs: Verbs, decisions: LastDecisions, pages: Pages, log: Log) -> Flask:
    """The WSGI application: POST /filter, /dryrun, /prioritize, /preempt, /bind, and the routes of ``pages``.

    A verb that can say no says it with 200: of any other answer kube-scheduler hides the text.
    """
    app = Flask("scheduler_ext", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = wire.MOST_BODY_BYTES
    metrics = pages.metrics

    calls: Calls = {}
    app.extensions["calls"] = calls  # for a server that has the whole body: Flask's way there costs more

    def takes(verb: str, answer: Callable[[bytes], Answer]) -> None:
        calls[f"/{verb}"] = lambda body: _answered(verb, answer, body, metrics, log)
        app.add_url_rule(f"/{verb}", verb, lambda: _response(calls[f"/{verb}"]), methods=["POST"])

    takes("filter", lambda body: _filter(verbs, decisions, body))
    takes("dryrun", lambda body: _dry_run(verbs, body))
    takes("prioritize", lambda body: _prioritize(verbs, body))
    takes("preempt", lambda body: _preempt(verbs, body))
    takes("bind", lambda body: _bind(verbs, decisions, body))
    register(app, pages, lambda: "" if verbs.complete else INCOMPLETE)

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        return said(error.code or 500, f"{error.name}: {error.description}")

    return app


def _response(call: Callable[[bytes], Said]) -> Response:
    status, kind, body = call(request.get_data(cache=False))
    return Response(body, status=status, mimetype=kind)


def _answered(verb: str, answer: Callable[[bytes], Answer], body: bytes, metrics: Metrics, log: Log) -> Said:
    started = time.perf_counter()
    try:
        text, result, fields = answer(body)
    except wire.MalformedArgsError as error:
        metrics.answered(verb, "malformed", time.perf_counter() - started)
        log("malformed", level="warning", verb=verb, reason=error)
        return Said(HTTPStatus.BAD_REQUEST, "text/plain", f"malformed body: {error}\n".encode())
    seconds = time.perf_counter() - started
    metrics.answered(verb, result, seconds)
    if fields:
        log(verb, level="info", result=result, **fields, ms=f"{1000 * seconds:.2f}")
    return Said(HTTPStatus.OK, "application/json", text)


def _filter(verbs: Verbs, decisions: LastDecisions, body: bytes) -> Answer:
    asked = wire.read_extender_args(body)
    found = verbs.filter(asked)
    fields = _named(asked) | {"nodes": len(asked.names)}
    if isinstance(found, str):
        return wire.filter_error(found), "error", fields | {"error": found}
    if found.fits or not asked.names:
        return wire.filter_answer(asked, found), "fit", fields | {"fit": len(found.fits)}
    decisions.refused(str(fields["uid"]), len(asked.names), (found.short, found.refused))
    reason = next(iter({**found.short, **found.refused}.values()))
    return wire.filter_answer(asked, found), "none", fields | {"reason": reason}


def _dry_run(verbs: Verbs, body: bytes) -> Answer:
    asked = wire.read_extender_args(body)
    found = verbs.dry_run(asked)
    if isinstance(found, str):
        return wire.filter_error(found), "error", {}
    answer = wire.filter_answer(asked, found.sorted_nodes, Assumed=found.assumed)
    return answer, "fit" if found.sorted_nodes.fits or not asked.names else "none", {}


def _prioritize(verbs: Verbs, body: bytes) -> Answer:
    asked = wire.read_extender_args(body)
    return wire.prioritize_answer(asked.names, verbs.prioritize(asked)), "fit", {}


def _preempt(verbs: Verbs, body: bytes) -> Answer:
    offer = wire.read_preemption_args(body)
    found = verbs.preempt(offer)
    added = sum(len(each.uids) - len(offer.nodes[name].uids) for name, each in found.items())
    fields = _named(offer) | {"nodes": len(offer.nodes), "left": len(found), "added": added}
    return wire.preempt_answer(found), "fit" if found else "none", fields


def _bind(verbs: Verbs, decisions: LastDecisions, body: bytes) -> Answer:
    order = wire.read_binding_args(body)
    error = verbs.bind(order)
    if error:
        decisions.bind_failed(order.uid, error)
    else:
        decisions.bound(order.uid)
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


def _named(asked: wire.ExtenderArgs | wire.PreemptionArgs) -> dict[str, object]:
    metadata = mapping(asked.pod.get("metadata"))
    return {"pod": f"{metadata.get('namespace')}/{metadata.get('name')}", "uid": metadata.get("uid")}
