"""What the rounds of evictions work with: their calls to the API server, which name a pod by UID, so that no
other pod of its name is affected."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from timekeeper.accounts.exhaustion.evictions import EvictionNotice
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core import names, object_names
from timekeeper.core.decisions import Record, record_nothing
from timekeeper.core.kube.eviction import (
    EvictionResult,
    deletion,
    eviction,
    is_gone,
    is_protected,
    is_refused_for_good,
)
from timekeeper.edge.clock import monotonic_ms
from timekeeper.edge.events import EventRecorder
from timekeeper.log import log
from timekeeper.runtime.api_server import ANSWER_S, STRATEGIC_MERGE, Answered, Api, Reply
from timekeeper.settler.state.tick_view import TickView
from timekeeper.settler.vetoes import Vetoes
from timekeeper.store.engine.engine import Store
from timekeeper.store.fencing import Epoch

Refusal = Literal["gone", "protected", "refused", "unclear"]


def evict(api: Api, pod: LedgerPod, dry_run: bool = False, grace_s: int | None = None) -> Reply:
    """Evict the pod. ``dry_run``: only ask whether that would be accepted; ``grace_s``: None: with its own
    grace period."""
    body = eviction(pod.namespace, pod.name, pod.uid, dry_run, grace_s)
    return api.call("POST", f"{_path(pod)}/eviction", body, timeout_s=ANSWER_S)


def delete(
    api: Api, pod: LedgerPod, condition: Mapping[str, Any], grace_s: int | None = None
) -> tuple[EvictionResult, str]:
    """Delete the pod, whatever its PodDisruptionBudget says; as `result_of`. ``grace_s``: as in `evict`.

    Before that it gets the condition, which says why it ends, also to a Job. Where that is refused for good,
    a line is logged and the pod is deleted all the same. After any other failure it is not deleted, and the
    result is never ``unclear``.
    """
    written = write_condition(api, pod, condition)
    if isinstance(written, Answered) and is_refused_for_good(written.status):
        log(
            "condition-refused",
            level="warning",
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            error=f"{written.status} {written.message}",
        )
    elif not isinstance(written, Answered) or written.status >= 300:
        result, error = result_of(written)
        return "refused" if result == "unclear" else result, error
    return result_of(api.call("DELETE", _path(pod), deletion(pod.uid, grace_s), timeout_s=ANSWER_S))


def write_notice(api: Api, pod: LedgerPod, notice: EvictionNotice, spared: Mapping[str, Any] | None) -> Reply:
    """Write the notice's annotations on the pod, by its status: the timekeeper may not change anything else.
    ``spared``: a condition to write with them."""
    annotations = {
        names.EVICT_AFTER: timestamp(notice.evict_after_ms),
        names.DELETE_AFTER: timestamp(notice.delete_after_ms),
    }
    return annotate(api, pod, annotations, spared)


def annotate(
    api: Api,
    pod: LedgerPod,
    annotations: Mapping[str, str | None],
    condition: Mapping[str, Any] | None = None,
) -> Reply:
    """Write annotations on the pod by its status, and remove those that are None."""
    patch: dict[str, Any] = {"metadata": {"uid": pod.uid, "annotations": annotations}}
    if condition is not None:
        patch["status"] = {"conditions": [condition]}
    return _patch(api, pod, patch)


def remove_finalizer(api: Api, pod: LedgerPod) -> Reply:
    """Take the finalizer of an older extender from the pod: nothing else of it changes."""
    patch = {"metadata": {"uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [names.GANG_FORGIVEN]}}
    return api.call("PATCH", _path(pod), patch, content_type=STRATEGIC_MERGE, timeout_s=ANSWER_S)


def write_condition(api: Api, pod: LedgerPod, condition: Mapping[str, Any]) -> Reply:
    """Write one condition of the pod's status, as `disruption` makes it."""
    return _patch(api, pod, {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}})


def refusal(answer: Answered) -> Refusal:
    """What an answer means that is no success."""
    if is_gone(answer.status, answer.message):
        return "gone"
    if is_protected(answer.status, answer.message, answer.body):
        return "protected"
    return "refused" if answer.status < 500 else "unclear"


def result_of(reply: Reply) -> tuple[EvictionResult, str]:
    """The result of an eviction or a deletion, and the API server's message unless it succeeded."""
    if not isinstance(reply, Answered):
        return "unclear", reply.message
    return ("evicted", "") if reply.status < 300 else (refusal(reply), f"{reply.status} {reply.message}")


def timestamp(at_ms: int | None) -> str | None:
    """As Kubernetes writes times; None without one."""
    return None if at_ms is None else object_names.timestamp(at_ms)


def _patch(api: Api, pod: LedgerPod, patch: Mapping[str, Any]) -> Reply:
    path = f"{_path(pod)}/status"
    return api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=ANSWER_S)


def _path(pod: LedgerPod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


@dataclass(frozen=True, slots=True)
class EvictorContext:
    """``view``: the settler's last tick; ``clock``: the time in Unix milliseconds, which dates notices;
    ``steady``: a monotonic clock in milliseconds, which spaces and counts evictions; ``record``: keeps a
    decision."""

    store: Store
    epoch: Epoch
    api: Api
    events: EventRecorder[str]
    view: Callable[[], TickView]
    clock: Callable[[], int]
    steady: Callable[[], int] = monotonic_ms
    record: Record = record_nothing
    vetoes: Vetoes = field(default_factory=dict)
