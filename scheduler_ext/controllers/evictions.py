"""The preemptor's calls to the API server: reserve cards for a pod, release them, evict a pod, delete a pod.

Each call names the pod by UID, so it never affects another pod of the same name.
"""

from collections.abc import Mapping
from typing import Any, Literal

from scheduler_ext.clients.pod_patches import pod_path
from scheduler_ext.log import Log
from scheduler_ext.model.pod import Pod
from timekeeper.core.kube.eviction import (
    BY_RECLAIM,
    deletion,
    disruption,
    eviction,
    is_gone,
    is_protected,
    is_refused_for_good,
)
from timekeeper.core.ledger.reservation import (
    NOBODY_DISPLACED,
    Displaced,
    Reservation,
    condition_of,
    withdrawn,
)
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api, Reply

CALL_S = 2.0

# "going": it was asked to leave, or is gone already; "protected": a PodDisruptionBudget keeps it, or a
# webhook for now; "refused": a webhook, a policy or a missing right refuses it for good;
# "unclear": it may have been asked or not, or could not be for now
Left = Literal["going", "protected", "refused", "unclear"]


def hold_cards(api: Api, pod: Pod, reservation: Reservation) -> Reply:
    """Write the reservation on the pod, in the version that the decision was based on. kube-scheduler then
    counts the pod on that node."""
    status = {"nominatedNodeName": reservation.node, "conditions": [condition_of(reservation)]}
    return _patch(api, pod, status, {"uid": pod.uid, "resourceVersion": pod.version})


def let_go(
    api: Api, pod: Pod, reason: str, message: str, now_ms: int, displaced: Displaced = NOBODY_DISPLACED
) -> Reply:
    """Remove the reservation from the pod. ``displaced``: who has left for its gang."""
    status: dict[str, Any] = {"conditions": [withdrawn(reason, message, now_ms, displaced)]}
    if pod.reserved is not None and pod.nominated == pod.reserved.node:
        status["nominatedNodeName"] = None
    return _patch(api, pod, status, {"uid": pod.uid, "resourceVersion": pod.version})


def withdraw(api: Api, pod: Pod, reason: str, message: str, now_ms: int) -> Reply:
    """Remove a reservation that was just written on the pod, whatever its version is by now."""
    status = {"nominatedNodeName": None, "conditions": [withdrawn(reason, message, now_ms)]}
    return _patch(api, pod, status, {"uid": pod.uid})


def evict(api: Api, pod: Pod, dry_run: bool = False) -> tuple[Left, str]:
    """Evict the pod with its own grace period. With ``dry_run`` only ask whether its PodDisruptionBudget
    allows it. Returns the outcome and the API server's message."""
    body = eviction(pod.namespace, pod.name, pod.uid, dry_run)
    path = f"{pod_path(pod.namespace, pod.name)}/eviction"
    return _left(api.call("POST", path, body, timeout_s=CALL_S))


def delete(api: Api, pod: Pod, why: str, now_ms: int, log: Log) -> tuple[Left, str]:
    """Delete the pod with its own grace period, whatever its PodDisruptionBudget says. Before that it gets
    the condition DisruptionTarget, as by an eviction: a Job's podFailurePolicy may ignore its end. Where that
    is refused for good, a line is logged and the pod is deleted all the same."""
    status = {"conditions": [disruption(True, BY_RECLAIM, why, now_ms)]}
    reply = _patch(api, pod, status, {"uid": pod.uid})
    written = _left(reply)
    if isinstance(reply, Answered) and is_refused_for_good(reply.status):
        error = f"{reply.status} {reply.message}"
        log("condition-refused", level="warning", pod=pod.full_name, uid=pod.uid, error=error)
    elif written[0] != "going":
        return written
    return _left(api.call("DELETE", pod_path(pod.namespace, pod.name), deletion(pod.uid), timeout_s=CALL_S))


def mark_reclaimed(api: Api, pod: Pod, why: str, now_ms: int) -> None:
    """Write the same condition on a pod of a gang that was evicted: the timekeeper ends what is left of its
    gang. A pod that has gone already needs none."""
    _patch(api, pod, {"conditions": [disruption(True, BY_RECLAIM, why, now_ms)]}, {"uid": pod.uid})


def shorten(api: Api, pod: Pod) -> tuple[Left, str]:
    """Shorten the grace period of a pod that is being deleted to that of an eviction, at least a second: with
    none the API server would remove the object while the containers run."""
    seconds = max(1, pod.spec_grace_ms // 1000)
    path = pod_path(pod.namespace, pod.name)
    return _left(api.call("DELETE", path, deletion(pod.uid, seconds), timeout_s=CALL_S))


def _patch(api: Api, pod: Pod, status: Mapping[str, Any], only: Mapping[str, str]) -> Reply:
    """``only``: the metadata without which the pod is left as it is."""
    patch = {"metadata": only, "status": status}
    path = f"{pod_path(pod.namespace, pod.name)}/status"
    return api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=CALL_S)


def _left(reply: Reply) -> tuple[Left, str]:
    if not isinstance(reply, Answered):
        return "unclear", reply.message
    if reply.status < 300 or is_gone(reply.status, reply.message):
        return "going", reply.message
    if is_protected(reply.status, reply.message, reply.body):
        return "protected", reply.message
    return ("refused" if is_refused_for_good(reply.status) else "unclear"), reply.message
