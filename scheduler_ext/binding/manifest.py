"""What the extender sends to the API server to bind a pod."""

from dataclasses import dataclass

from scheduler_ext.clients.pod_patches import Body, pod_path
from scheduler_ext.model.pod import Pod
from timekeeper.core import names
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import WHOLE_MILLI, GPURequest, Placement


@dataclass(frozen=True, slots=True)
class Written:
    """What a Binding writes on its pod."""

    annotations: dict[str, str]
    labels: dict[str, str]


NOTHING = Written({}, {})


def binding_path(namespace: str, name: str) -> str:
    """Where a pod's Binding is posted."""
    return f"{pod_path(namespace, name)}/binding"


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
    see, the limits of each GPU container, and what the dialect's node plugin reads.

    Where the node's plugin picks the cards, nobody is told to see those of the placement: they may be others.
    Where it limits what containers use, nobody else does. The limits are written whether the node runs MPS or
    not: who is bound does not know, and a pod may read them only if the webhook was told to use them.
    """
    dialect = BY_NAME[request.dialect]
    annotations = {names.DEVICES: encode_placement(placement)}
    if not dialect.plugin_chooses:
        annotations |= _visible(placement)
    if dialect.limited_by_mps:
        annotations |= _limits(placement)
    annotations |= dialect.at_binding(request, placement, node, now_ns, pod.containers)
    return Written(annotations, dialect.labels_at_binding(request, placement))


def _visible(placement: Placement) -> dict[str, str]:
    seen = {container: [each.uuid for each in slices] for container, slices in placement.containers}
    union = {each.uuid: each.index for _, slices in placement.containers for each in slices}
    seen[names.SIDECAR] = sorted(union, key=lambda uuid: union[uuid])
    return {names.VISIBLE + container: ",".join(uuids) for container, uuids in seen.items()}


def _limits(placement: Placement) -> dict[str, str]:
    """What each GPU container may use of its cards, as clients of NVIDIA's MPS read it: its memory on each of
    them (``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``: ``0=8000M,1=8000M``; M is MiB) and its part of their compute
    (``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``; one figure for all).

    Cards are numbered as CUDA numbers them in the container: alike ones in the order of their indexes. Both
    are always written, a whole card's too, for nobody tells what CUDA makes of an empty value. Who reserved
    no compute is not limited in it.
    """
    limits = {}
    for container, slices in placement.containers:
        parts = sorted(slices, key=lambda each: each.index)
        memory = ",".join(f"{place}={each.memory_mib}M" for place, each in enumerate(parts))
        share_milli = max((each.share_milli for each in parts), default=0) or WHOLE_MILLI
        limits[names.MPS_MEMORY + container] = memory
        limits[names.MPS_THREADS + container] = str(-(-share_milli // 10))  # per cent, at least one
    return limits
