"""What the extender sends to the API server to bind a pod."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_ext.clients.pod_patches import Body, pod_path
from scheduler_ext.model.pod import Pod
from timekeeper.core import names
from timekeeper.core.dialects import BY_NAME, Dialect
from timekeeper.core.dialects.dialect import PlacedRequest
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.request.runtime_plugins import read_by
from timekeeper.core.values import WHOLE_MILLI, Card, GPURequest, Placement


@dataclass(frozen=True, slots=True)
class Written:
    """The annotations and labels that a Binding puts on its pod."""

    annotations: dict[str, str]
    labels: dict[str, str]


NOTHING = Written({}, {})
CHOSEN_BY_PLUGIN = Placement(())  # on a node whose cards are only counted


def binding_path(namespace: str, name: str) -> str:
    """The path to post a pod's Binding to."""
    return f"{pod_path(namespace, name)}/binding"


def binding(namespace: str, name: str, uid: str, version: str, node: str, written: Written) -> Body:
    """A Binding. The API server accepts it only for this pod in this version, and copies annotations and
    labels onto the pod in the same transaction, over anything there."""
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


def written_for(
    pod: Pod,
    request: GPURequest,
    placement: Placement,
    node: str,
    now_ns: int,
    cards: tuple[Card, ...] = (),
    family: str = "",
    plugins: Sequence[str] = (),
) -> Written:
    """What the Binding writes on the pod: the placement, the visible cards of each GPU container and of the
    sidecar, each GPU container's limits, and what the dialect's node plugin reads.

    If the node's plugin shows the containers their cards, none is shown here: where it picks them they may
    differ from the placement's.
    If the plugin limits containers itself, no limits are written. Otherwise limits are always written,
    whether the node runs MPS or not: the extender does not know, and a pod reads them only if the webhook
    runs with ``--mps on``. Of `CHOSEN_BY_PLUGIN` nothing is written: no card is known.

    ``family``: the node's dialect; its plugin reads what is written. ``plugins``: of its container runtime.
    """
    if placement == CHOSEN_BY_PLUGIN:
        return NOTHING
    of_node = BY_NAME.get(family)
    serving = of_node if of_node is not None and request.dialect in of_node.serves else None
    dialect = serving or BY_NAME[request.dialect]
    annotations = {names.DEVICES: encode_placement(placement)}
    if not dialect.shown_by_plugin:
        annotations |= _visible(placement)
    if dialect.limited_by_mps:
        annotations |= _limits(placement)
    annotations |= read_by(plugins, dialect, placement, cards)
    annotations |= dialect.at_binding(
        PlacedRequest(request, placement, node, now_ns, pod.containers, pod.init_containers, cards)
    )
    return Written(annotations, {**dialect.labels_at_binding, **_node_label(dialect, node)})


def with_marks(written: Written, started: str, standing: str) -> Written:
    """The same, and the annotation by which a gang has started, and that of the standing; "" for neither."""
    marks = {names.GANG_STARTED: started, names.STANDING: standing}
    return Written(
        {**written.annotations, **{name: text for name, text in marks.items() if text}}, written.labels
    )


def _node_label(dialect: Dialect, node: str) -> dict[str, str]:
    """Nothing where the node's name is too long for the value of a label."""
    return {dialect.node_label: node} if dialect.node_label and len(node) < 64 else {}


def _visible(placement: Placement) -> dict[str, str]:
    seen = {container: [each.uuid for each in slices] for container, slices in placement.containers}
    union = {each.uuid: each.index for _, slices in placement.containers for each in slices}
    seen[names.SIDECAR] = sorted(union, key=lambda uuid: union[uuid])
    return {names.VISIBLE + container: ",".join(uuids) for container, uuids in seen.items()}


def _limits(placement: Placement) -> dict[str, str]:
    """Each GPU container's limits in NVIDIA MPS's form: memory on each card
    (``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``: ``0=8000M,1=8000M``; M is MiB) and compute
    (``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``; one figure for all).

    Cards are numbered as CUDA numbers them in the container: equal ones by index. Both are always written,
    also for a whole card, because CUDA does not document what an empty value means. A container that reserved
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
