"""Evictions as the API server takes and answers them (policy/v1, the subresource ``pods/eviction``)."""

import re
from collections.abc import Mapping
from typing import Any

from timekeeper.core.request.request import mapping, sequence

# the API server's words for a precondition's UID that is not the object's; no pod's name can hold them
# Source: k8s.io/apiserver, ``storage.Preconditions.Check`` and ``rest.BeforeDelete``
_ANOTHERS_UID = re.compile(r"Precondition failed: UID in precondition|the UID in the precondition \(")


def eviction(namespace: str, name: str, uid: str, dry_run: bool = False) -> dict[str, Any]:
    """The body that asks this very pod to leave, by its own grace period, and no other of its name."""
    options: dict[str, Any] = {"preconditions": {"uid": uid}}
    if dry_run:
        options["dryRun"] = ["All"]
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": options,
    }


def is_gone(status: int, message: str) -> bool:
    """Whether a refusal says that the pod is there no more, nor is another of its name this one."""
    return status == 404 or (status == 409 and _ANOTHERS_UID.search(message) is not None)


def is_protected(status: int, message: str, body: Mapping[str, Any]) -> bool:
    """Whether a PodDisruptionBudget refused: its cause says so. A pod under two of them cannot be evicted at
    all, which the API server calls an error of its own. Other 429s are those of a busy API server."""
    causes = [mapping(each) for each in sequence(mapping(body.get("details")).get("causes"))]
    if status == 429:
        return any(each.get("reason") == "DisruptionBudget" for each in causes)
    return status == 500 and "more than one PodDisruptionBudget" in message
