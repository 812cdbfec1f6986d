"""The preemptor's calls to the API server: hold cards for a pod and let them go, ask a pod to leave, and make
it leave. Each names the very pod by its UID, so none touches another of the same name."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from scheduler_ext.api import STRATEGIC_MERGE, Answered, Api, Reply
from scheduler_ext.binding import pod_path
from scheduler_ext.pods import Pod
from scheduler_ext.reservation import Reservation, condition_of, withdrawn
from timekeeper.core.request import mapping, sequence

CALL_S = 2.0
# the API server's words for a precondition's UID that is not the object's; no pod's name can hold them
# Source: k8s.io/apiserver, ``storage.Preconditions.Check`` and ``rest.BeforeDelete``
_ANOTHERS_UID = re.compile(r"Precondition failed: UID in precondition|the UID in the precondition \(")

# "going": it was asked to leave, or is gone already; "protected": a PodDisruptionBudget keeps it;
# "unclear": it may have been asked or not, or could not be for now
Left = Literal["going", "protected", "unclear"]


def hold_cards(api: Api, pod: Pod, reservation: Reservation) -> Reply:
    """Write on the pod, in the version that was looked at, that these cards are held for it. kube-scheduler
    then reckons with it on that node."""
    status = {"nominatedNodeName": reservation.node, "conditions": [condition_of(reservation)]}
    return _patch(api, pod, status)


def let_go(api: Api, pod: Pod, reason: str, message: str, now_ms: int) -> Reply:
    """Write on the pod that nothing is held for it any more."""
    status: dict[str, Any] = {"conditions": [withdrawn(reason, message, now_ms)]}
    if pod.reserved is not None and pod.nominated == pod.reserved.node:
        status["nominatedNodeName"] = None
    return _patch(api, pod, status)


def evict(api: Api, pod: Pod, dry_run: bool = False) -> tuple[Left, str]:
    """Ask the pod to leave, by its own grace period; with ``dry_run`` only whether its PodDisruptionBudget
    would let it. What came of it, and the API server's words."""
    options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options,
    }
    path = f"{pod_path(pod.namespace, pod.name)}/eviction"
    return _left(api.call("POST", path, body, timeout_s=CALL_S))


def delete(api: Api, pod: Pod) -> tuple[Left, str]:
    """Make the pod leave, by its own grace period, whatever its PodDisruptionBudget says."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
    return _left(api.call("DELETE", pod_path(pod.namespace, pod.name), body, timeout_s=CALL_S))


def _patch(api: Api, pod: Pod, status: Mapping[str, Any]) -> Reply:
    patch = {"metadata": {"uid": pod.uid, "resourceVersion": pod.version}, "status": status}
    path = f"{pod_path(pod.namespace, pod.name)}/status"
    return api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=CALL_S)


def _left(reply: Reply) -> tuple[Left, str]:
    if not isinstance(reply, Answered):
        return "unclear", reply.why
    if reply.status < 300 or reply.status == 404 or _is_another(reply):
        return "going", reply.message
    return ("protected" if _is_protected(reply) else "unclear"), reply.message


def _is_another(reply: Answered) -> bool:
    """A pod of the same name stands in its place: the one that was meant is gone."""
    return reply.status == 409 and _ANOTHERS_UID.search(reply.message) is not None


def _is_protected(reply: Answered) -> bool:
    """Refused by a PodDisruptionBudget: its cause says so. A pod under two of them cannot be evicted at all,
    which the API server calls an error of its own. Other 429s are those of a busy API server."""
    causes = [mapping(each) for each in sequence(mapping(reply.body.get("details")).get("causes"))]
    if reply.status == 429:
        return any(each.get("reason") == "DisruptionBudget" for each in causes)
    return reply.status == 500 and "more than one PodDisruptionBudget" in reply.message
