"""Why a claim is not made from its template, as Kubernetes' claim controller says it in the pod's Events."""

from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Event
from urllib.parse import urlencode

from timekeeper.accounts.claims.consumers import UNMADE
from timekeeper.core.decisions import Decision, Record
from timekeeper.core.json_values import mapping, sequence
from timekeeper.runtime.api_server import ANSWER_S, Answered, Reply

_REASON = "FailedResourceClaimCreation"


def keep_recording(
    waits: "SimpleQueue[Decision]", call: Callable[..., Reply], record: Record, stop: Event
) -> None:
    """Record each of these decisions, with the controller's reason, until ``stop``. ``call``: the API
    server's. Without an answer the decision stays as it is, and names the Event."""
    while not stop.is_set():
        try:
            record(with_reason(waits.get(timeout=1), call))
        except Empty:
            continue


def with_reason(decision: Decision, call: Callable[..., Reply]) -> Decision:
    """The decision with what the last of these Events on the pod says, such as a quota that is exceeded."""
    which = f"involvedObject.uid={decision.uid},reason={_REASON}"
    path = f"/api/v1/namespaces/{decision.namespace}/events?{urlencode({'fieldSelector': which})}"
    reply = call("GET", path, timeout_s=ANSWER_S)
    items = sequence(reply.body.get("items")) if isinstance(reply, Answered) else []
    said = [str(mapping(each).get("message") or "").rstrip(".") for each in items]
    if not said or not said[-1]:
        return decision
    texts = {name: str(text).replace(UNMADE, f": {said[-1]}") for name, text in decision.figures.items()}
    return replace(decision, figures=texts)
