"""What is sent to the API server to bind a pod, and to wake one."""

import datetime
from dataclasses import dataclass
from typing import Any

from scheduler_ext.pods import Pod
from timekeeper.core import names
from timekeeper.core.cards import encode_placement
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.values import GPURequest, Placement

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """What a Binding writes on its pod."""

    annotations: dict[str, str]
    labels: dict[str, str]


NOTHING = Written({}, {})


def binding_path(namespace: str, name: str) -> str:
    """Where a pod's Binding is posted."""
    return f"{pod_path(namespace, name)}/binding"


def pod_path(namespace: str, name: str) -> str:
    """Where a pod is."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def binding(namespace: str, name: str, uid: str, version: str, node: str, written: Written) -> Body:
    """A Binding. The API server takes it only for this very pod in this very version, and copies annotations
    and labels onto the pod in the same transaction, over whatever stands there."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid,
            "resourceVersion": version,
            "annotations": written.annotations,
            "labels": written.labels,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def written_for(pod: Pod, request: GPURequest, placement: Placement, node: str, now_ns: int) -> Written:
    """What the Binding writes on the pod: the placement, the cards that each GPU container and the sidecar
    see, and what the dialect's node plugin reads.

    Where the node's plugin picks the cards, nobody is told to see those of the placement: they may be others.
    """
    dialect = BY_NAME[request.dialect]
    annotations = {names.DEVICES: encode_placement(placement)}
    if not dialect.plugin_chooses:
        annotations |= _visible(placement)
    annotations |= dialect.at_binding(request, placement, node, now_ns, pod.containers)
    return Written(annotations, dialect.labels_at_binding(request, placement))


def wake_patch(uid: str, reason: str, message: str, now_ms: int) -> Body:
    """A strategic merge patch of a pod's status with a condition of ours; other conditions stay.

    The time in the message makes each patch a change: one that changes nothing wakes nobody and leaves the
    resource version as it was.
    """
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": names.WAKE_CONDITION,
        "status": "True",
        "reason": reason,
        "message": f"{message} at {now.isoformat(timespec='milliseconds')}",
        "lastTransitionTime": seconds,
    }
    return {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}


def _visible(placement: Placement) -> dict[str, str]:
    seen = {container: [each.uuid for each in slices] for container, slices in placement.containers}
    union = {each.uuid: each.index for _, slices in placement.containers for each in slices}
    seen[names.SIDECAR] = sorted(union, key=lambda uuid: union[uuid])
    return {names.VISIBLE + container: ",".join(uuids) for container, uuids in seen.items()}
