"""Requests and answers of the eviction API (policy/v1, subresource ``pods/eviction``)."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.object_names import timestamp

# The API server's message if the precondition's UID differs from the object's; no pod name can contain it.
# Source: k8s.io/apiserver, ``storage.Preconditions.Check`` and ``rest.BeforeDelete``.
_ANOTHERS_UID = re.compile(r"Precondition failed: UID in precondition|the UID in the precondition \(")

# 4xx of calls that may succeed later: the caller is not known, the object is missing, a timeout, a conflict,
# a busy API server.
_OTHER_ANSWERS = (401, 404, 408, 409, 429)


TARGET = "DisruptionTarget"  # the condition of a pod that is about to be deleted
BY_SCHEDULER, BY_RECLAIM = "PreemptionByScheduler", "BursarReclaim"  # its reasons if it leaves for another

# "evicted", "deleted": accepted; "gone": the pod no longer existed; "protected": a PodDisruptionBudget
# prevents it; "refused": the API server refused; "unclear": an error or no answer, the pod may be evicted or
# not
EvictionResult = Literal["evicted", "deleted", "gone", "protected", "refused", "unclear"]
EVICTION_RESULTS: tuple[EvictionResult, ...] = get_args(EvictionResult)


def eviction(
    namespace: str,
    name: str,
    uid: str,
    dry_run: bool = False,
    grace_s: int | None = None,
    version: str = "",
) -> dict[str, Any]:
    """The body that evicts the pod with this UID only. ``grace_s``: None: with its own grace period;
    ``version``: only in this version, "": in any."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": _options(uid, grace_s, version) | ({"dryRun": ["All"]} if dry_run else {}),
    }


def deletion(uid: str, grace_s: int | None = None) -> dict[str, Any]:
    """The body that deletes the pod with this UID only. ``grace_s``: as in `eviction`."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", **_options(uid, grace_s)}


def _options(uid: str, grace_s: int | None, version: str = "") -> dict[str, Any]:
    only = {"uid": uid} | ({"resourceVersion": version} if version else {})
    return {"preconditions": only} | ({} if grace_s is None else {"gracePeriodSeconds": grace_s})


def disruption(is_target: bool, reason: str, message: str, now_ms: int) -> dict[str, Any]:
    """The condition that the pod is about to be deleted, or is not any more. Kubernetes defines it, and a
    Job's podFailurePolicy may ignore ends of pods that have it."""
    return {
        "type": TARGET,
        "status": "True" if is_target else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(now_ms),
    }


def leaves_for_another(pod: Mapping[str, Any]) -> bool:
    """Whether it is being deleted for another pod, by its own object."""
    if not mapping(pod.get("metadata")).get("deletionTimestamp"):
        return False
    conditions = map(mapping, sequence(mapping(pod.get("status")).get("conditions")))
    found = [each for each in conditions if each.get("type") == TARGET and each.get("status") == "True"]
    return any(each.get("reason") in (BY_SCHEDULER, BY_RECLAIM) for each in found)


def is_gone(status: int, message: str) -> bool:
    """Whether a refusal says that this pod no longer exists, even if another has its name."""
    return status == 404 or (status == 409 and _ANOTHERS_UID.search(message) is not None)


def is_refused_for_good(status: int) -> bool:
    """Whether the same call would be refused again: the object is invalid, or a right or an admission webhook
    refuses it."""
    return 400 <= status < 500 and status not in _OTHER_ANSWERS


def is_webhooks(status: int, message: str) -> bool:
    """Whether a webhook refuses for now: it says "too many requests", as the Eviction API does."""
    return status == 429 and message.startswith('admission webhook "')


def is_protected(status: int, message: str, body: Mapping[str, Any]) -> bool:
    """Whether a PodDisruptionBudget refused, as stated in the causes, or a webhook: such as KubeVirt's, which
    its tenant causes by an object of his own. A pod under two budgets cannot be evicted at all; the API
    server answers 500 for that. Other 429s mean a busy API server."""
    causes = [mapping(each) for each in sequence(mapping(body.get("details")).get("causes"))]
    if status == 429:
        by_budget = any(each.get("reason") == "DisruptionBudget" for each in causes)
        return by_budget or is_webhooks(status, message)
    return status == 500 and "more than one PodDisruptionBudget" in message
