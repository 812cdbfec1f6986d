"""The extender's routes: bodies, status codes and log lines. `Verbs` decides."""

import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Literal

from scheduler_ext.binding.outcome import Bound
from scheduler_ext.log import Log
from scheduler_ext.reports.metrics import ExtenderMetrics
from scheduler_ext.verbs import protocol
from scheduler_ext.verbs.last_decisions import LastDecisions
from scheduler_ext.verbs.name_lists import KnownLists
from scheduler_ext.verbs.verbs import Verbs
from timekeeper.core.json_values import mapping
from timekeeper.runtime.http.service import HttpAnswer, PostCall, Route

# kube-scheduler filters and prioritizes for one pod at a time, and binds meanwhile. Each verb has threads of
# its own: a bind that waits for the API server keeps no filter waiting. The other verbs only compute, and
# several threads that compute take turns at a cost.
_THREADS = 1

# the body, the result for the metrics, and the fields of the log line; dryrun and prioritize write none
_Verb = Literal["filter", "dryrun", "prioritize", "preempt", "bind"]
VerbAnswer = tuple[bytes, str, dict[str, object]]


def verb_calls(
    verbs: Verbs, decisions: LastDecisions, metrics: ExtenderMetrics, log: Log
) -> dict[str, PostCall]:
    """POST /filter, /dryrun, /prioritize, /preempt and /bind.

    A verb refuses with status 200: kube-scheduler hides the text of any other answer.
    """
    lists = KnownLists()
    answers: dict[_Verb, Callable[[bytes], VerbAnswer]] = {
        "filter": lambda body: _filter(verbs, decisions, lists, body),
        "dryrun": lambda body: _dry_run(verbs, KnownLists(), body),
        "prioritize": lambda body: _prioritize(verbs, lists, body),
        "preempt": lambda body: _preempt(verbs, body),
        "bind": lambda body: _bind(verbs, decisions, body),
    }
    return {f"/{verb}": partial(_answered, verb, answer, metrics, log) for verb, answer in answers.items()}


def verb_routes(calls: dict[str, PostCall], bind_threads: int) -> tuple[Route, ...]:
    """The calls as routes of the server; at most ``bind_threads`` pods are bound at a time."""

    def route(path: str, call: PostCall) -> Route:
        threads = bind_threads if path == "/bind" else _THREADS
        return Route("POST", path, lambda request: call(request.body), threads)

    return tuple(route(path, call) for path, call in calls.items())


def _answered(
    verb: _Verb, answer: Callable[[bytes], VerbAnswer], metrics: ExtenderMetrics, log: Log, body: bytes
) -> HttpAnswer:
    started = time.perf_counter()
    try:
        text, result, fields = answer(body)
    except protocol.MalformedArgsError as error:
        metrics.answered(verb, "malformed", time.perf_counter() - started)
        log("malformed", level="warning", verb=verb, reason=error)
        return HttpAnswer(HTTPStatus.BAD_REQUEST, "text/plain", f"malformed body: {error}\n".encode())
    seconds = time.perf_counter() - started
    metrics.answered(verb, result, seconds)
    if verb != "dryrun" and verb != "prioritize":
        log(verb, level="info", result=result, **fields, ms=f"{1000 * seconds:.2f}")
    return HttpAnswer(HTTPStatus.OK, "application/json", text)


def _filter(verbs: Verbs, decisions: LastDecisions, lists: KnownLists, body: bytes) -> VerbAnswer:
    asked = protocol.read_extender_args(body, lists)
    found = verbs.filter(asked)
    fields = _named(asked) | {"nodes": len(asked.names)}
    if isinstance(found, str):
        return protocol.filter_error(found), "error", fields | {"error": found}
    if found.fits or not asked.names:
        return protocol.filter_answer(asked, found, lists), "fit", fields | {"fit": len(found.fits)}
    decisions.refused(str(fields["uid"]), len(asked.names), (found.short, found.refused))
    reason = next(iter({**found.short, **found.refused}.values())).sentence
    return protocol.filter_answer(asked, found, lists), "none", fields | {"reason": reason}


def _dry_run(verbs: Verbs, lists: KnownLists, body: bytes) -> VerbAnswer:
    asked = protocol.read_extender_args(body, lists)
    found = verbs.dry_run(asked)
    if isinstance(found, str):
        return protocol.filter_error(found), "error", {}
    answer = protocol.filter_answer(asked, found.sorted_nodes, lists, Assumed=found.assumed)
    return answer, "fit" if found.sorted_nodes.fits or not asked.names else "none", {}


def _prioritize(verbs: Verbs, lists: KnownLists, body: bytes) -> VerbAnswer:
    asked = protocol.read_extender_args(body, lists)
    return protocol.prioritize_answer(asked.names, verbs.prioritize(asked)), "fit", {}


def _preempt(verbs: Verbs, body: bytes) -> VerbAnswer:
    offer = protocol.read_preemption_args(body)
    found = verbs.preempt(offer)
    added = sum(len(each.uids) - len(offer.nodes[name].uids) for name, each in found.items())
    fields = _named(offer) | {"nodes": len(offer.nodes), "left": len(found), "added": added}
    return protocol.preempt_answer(found), "fit" if found else "none", fields


def _bind(verbs: Verbs, decisions: LastDecisions, body: bytes) -> VerbAnswer:
    args = protocol.read_binding_args(body)
    outcome = verbs.bind(args)
    fields: dict[str, object] = {"pod": f"{args.namespace}/{args.name}", "uid": args.uid, "node": args.node}
    if isinstance(outcome, Bound):
        decisions.bound(args.uid)
        return protocol.bind_answer(outcome), "bound", fields
    decisions.bind_failed(args.uid, outcome.sentence)
    fields |= {"reason": outcome.reason, "error": outcome.sentence}
    return protocol.bind_answer(outcome), "refused", fields


def _named(asked: protocol.ExtenderArgs | protocol.PreemptionArgs) -> dict[str, object]:
    metadata = mapping(asked.pod.get("metadata"))
    return {"pod": f"{metadata.get('namespace')}/{metadata.get('name')}", "uid": metadata.get("uid")}
