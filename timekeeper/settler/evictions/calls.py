"""The evictors' calls to the API server. Each names its pod by UID, so it never affects another pod of its
name."""

from collections.abc import Mapping
from typing import Any, Literal

from timekeeper.accounts.card_use.evictions import Result
from timekeeper.accounts.exhaustion.evictions import EvictionNotice
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core import names
from timekeeper.core.kube import timestamps
from timekeeper.core.kube.eviction import (
    eviction,
    is_gone,
    is_protected,
    is_refused_for_good,
)
from timekeeper.runtime.api_server import ANSWER_S, STRATEGIC_MERGE, Answered, Api, Reply
from timekeeper.runtime.log import log

Refusal = Literal["gone", "protected", "refused", "unclear"]


def evict(api: Api, namespace: str, name: str, uid: str) -> Reply:
    """Evict the pod with its own grace period."""
    path = f"{_path(namespace, name)}/eviction"
    return api.call("POST", path, eviction(namespace, name, uid), timeout_s=ANSWER_S)


def delete(api: Api, pod: LedgerPod, condition: Mapping[str, Any]) -> "tuple[Result, str]":
    """Delete the pod with its own grace period, whatever its PodDisruptionBudget says; as `result_of`.

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
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
    return result_of(api.call("DELETE", _path(pod.namespace, pod.name), body, timeout_s=ANSWER_S))


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


def result_of(reply: Reply) -> tuple[Result, str]:
    """The result of an eviction or a deletion, and the API server's message unless it succeeded."""
    if not isinstance(reply, Answered):
        return "unclear", reply.message
    return ("evicted", "") if reply.status < 300 else (refusal(reply), f"{reply.status} {reply.message}")


def timestamp(at_ms: int | None) -> str | None:
    """As Kubernetes writes times; None without one."""
    return None if at_ms is None else timestamps.timestamp(at_ms)


def _patch(api: Api, pod: LedgerPod, patch: Mapping[str, Any]) -> Reply:
    path = f"{_path(pod.namespace, pod.name)}/status"
    return api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=ANSWER_S)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
