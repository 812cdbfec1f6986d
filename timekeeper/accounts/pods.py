"""A pod as the ledger sees it: read once from the API server's JSON, the rest of the object forgotten."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any

from timekeeper.core import names
from timekeeper.core.ledger import hold
from timekeeper.core.request.request import ParsedRequest, annotations_of, mapping, parse, sequence
from timekeeper.core.values import GPURequest

Json = Mapping[str, Any]

_ANY_GRACE_MS = 2**53  # the settings bound a grace period, not the reading of it


@dataclass(frozen=True, slots=True)
class LedgerPod:
    """A pod that asks for GPUs. Times in milliseconds since 1970.

    ``node`` is empty until the pod is bound; ``standing`` and ``devices`` are the annotations' text, empty
    where there is none; ``started_ms`` and ``ended_ms`` are the kubelet's proof (``ended_ms`` 0: ended
    without having run); ``bound_ms`` None where the object does not tell; ``others_ended``: every container
    but our sidecar has ended and none will be started again, so that only the sidecar keeps the pod going;
    ``labels``: its own as canonical JSON, without those that say the same as ``owner``; ``deleted_ms``: when
    it was asked to be gone by, where it was.
    """

    uid: str
    namespace: str
    name: str
    owner: str
    node: str
    created_ms: int
    bound_ms: int | None
    request: GPURequest
    standing: str
    devices: str
    started_ms: int | None
    ended_ms: int | None
    grace_ms: int
    others_ended: bool
    labels: str = "{}"
    deleted_ms: int | None = None


@dataclass(frozen=True, slots=True)
class UnreadablePod:
    """A pod that asks for GPUs in a way that admission would have refused: it has no rate, and is only
    reported."""

    uid: str
    namespace: str
    name: str
    problem: str


def read_pod(raw: Json) -> LedgerPod | UnreadablePod | None:
    """The pod, or None where it asks for no GPU. Never raises on what an API server can send."""
    metadata = mapping(raw.get("metadata"))
    parsed = _parse(raw)
    namespace = intern(str(metadata.get("namespace", "")))
    where = (str(metadata.get("uid", "")), namespace, str(metadata.get("name", "")))
    if parsed.violations:
        return UnreadablePod(*where, parsed.violations[0].sentence())
    if parsed.request is None:
        return None
    annotations = annotations_of(raw)
    spec = mapping(raw.get("spec"))
    return LedgerPod(
        *where,
        owner=intern(_owner(metadata)),
        node=intern(str(spec.get("nodeName") or "")),
        created_ms=hold.millis(metadata.get("creationTimestamp")) or 0,
        bound_ms=_bound_ms(mapping(raw.get("status"))),
        request=_one_of_its_kind(parsed.request),
        standing=intern(str(annotations.get(names.STANDING, ""))),
        devices=str(annotations.get(names.DEVICES, "")),
        started_ms=hold.started_ms(raw, parsed.request),
        ended_ms=hold.released_ms(raw, parsed.request),
        grace_ms=hold.grace_ms(raw, _ANY_GRACE_MS),
        others_ended=_others_ended(raw),
        labels=_labels(metadata),
        deleted_ms=hold.millis(metadata.get("deletionTimestamp")),
    )


@lru_cache(maxsize=10_000)
def _one_of_its_kind(request: GPURequest) -> GPURequest:
    """The same value for all pods that ask alike: a hundred thousand of them ask in a few ways."""
    return request


def _others_ended(raw: Json) -> bool:
    """True where the kubelet has ended every regular container but ours for good. Init containers, native
    sidecars among them, keep no pod going."""
    spec = mapping(raw.get("spec"))
    is_leaving = bool(mapping(raw.get("metadata")).get("deletionTimestamp"))
    statuses = [mapping(each) for each in sequence(mapping(raw.get("status")).get("containerStatuses"))]
    ends = {str(each.get("name")): mapping(each.get("state")).get("terminated") for each in statuses}
    containers = [mapping(each) for each in sequence(spec.get("containers"))]
    others = [each for each in containers if each.get("name") != names.SIDECAR]
    return bool(others) and all(
        _ended_for_good(each, spec.get("restartPolicy"), ends.get(str(each.get("name"))), is_leaving)
        for each in others
    )


def _ended_for_good(container: Json, pods_policy: object, end: object, is_leaving: bool) -> bool:
    """Whether a container is not started again: its policy goes before the pod's; where it has rules of its
    own, nobody but the kubelet can tell before the pod goes."""
    if not isinstance(end, Mapping):
        return False
    if is_leaving:
        return True
    if container.get("restartPolicyRules"):
        return False
    policy = container.get("restartPolicy") or pods_policy
    return policy == "Never" or (policy == "OnFailure" and end.get("exitCode") == 0)


def _parse(raw: Json) -> ParsedRequest:
    """The request of the spec. What a user may write into annotations later cannot make a pod that runs
    unreadable."""
    parsed = parse(raw)
    if not parsed.violations:
        return parsed
    bare = {**mapping(raw.get("metadata")), "annotations": {}}
    return parse({**raw, "metadata": bare})


def _labels(metadata: Json) -> str:
    """The labels that a report may group by: at most 32, by name; controllers' and ours tell nothing of a
    pod that its owner does not."""
    given = mapping(metadata.get("labels"))
    kept = {name: given[name] for name in sorted(given) if not name.startswith(_NOT_USERS)}
    return json.dumps(dict(list(kept.items())[:_MOST_LABELS]), separators=(",", ":"))


_NOT_USERS = (
    "bursar.dev/",
    "pod-template-hash",
    "pod-template-generation",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/pod-index",
)
_MOST_LABELS = 32


def _owner(metadata: Json) -> str:
    """The controller as ``Kind/name``, empty for a pod of its own. A Deployment names its ReplicaSets after
    itself and the hash that it sets on their pods as a label: with that, it is the owner."""
    for reference in sequence(metadata.get("ownerReferences")):
        if isinstance(reference, Mapping) and reference.get("controller") is True:
            kind, name = str(reference.get("kind", "")), str(reference.get("name", ""))
            deployment = name.removesuffix(f"-{mapping(metadata.get('labels')).get('pod-template-hash')}")
            is_deployments = kind == "ReplicaSet" and deployment != name
            return f"Deployment/{deployment}" if is_deployments else f"{kind}/{name}"
    return ""


def _bound_ms(status: Json) -> int | None:
    """When the Binding was made; the kubelet's first word where a scheduler has set the condition back
    since."""
    for condition in sequence(status.get("conditions")):
        if isinstance(condition, Mapping) and condition.get("type") == "PodScheduled":
            bound = hold.millis(condition.get("lastTransitionTime"))
            if condition.get("status") == "True" and bound is not None:
                return bound
    return hold.millis(status.get("startTime"))
