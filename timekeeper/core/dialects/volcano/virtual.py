"""Volcano's vGPU on NVIDIA's cards: ``volcano.sh/vgpu-number`` with ``vgpu-memory``,
``vgpu-memory-percentage`` and ``vgpu-cores``.

Its node plugin takes the pod of its node that was placed earliest among those with as many devices as the
kubelet asks for. So a pod has one container with devices, and no second pod is bound before the first has its
own. Sources: volcano, volcano-vgpu-device-plugin (`docs/dialects.md`).
"""

from collections.abc import Collection

from timekeeper.core.dialects.amounts import NodeFacts, PodFacts, indexes
from timekeeper.core.dialects.dialect import Dialect, Found, PlacedRequest, nothing_at_admission
from timekeeper.core.dialects.vgpu import (
    TRUE,
    RegisteredCard,
    VgpuAnnotations,
    VgpuResources,
    devices_found,
    devices_text,
    natural,
    registered,
)
from timekeeper.core.values import Card, GPURequest
from timekeeper.core.violation import Violation, first_of

REGISTER = "volcano.sh/node-vgpu-register"
UNHEALTHY = "volcano.sh/gpu-unhealthy-ids"  # of a node
PHASE, TO_ALLOCATE, TIME = "volcano.sh/bind-phase", "volcano.sh/devices-to-allocate", "volcano.sh/vgpu-time"
ALLOCATED = "volcano.sh/vgpu-ids-new"

RESOURCES = VgpuResources(
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
)
ANNOTATIONS = VgpuAnnotations(
    models="nvidia.com/use-gputype",
    exclude_models="nvidia.com/nouse-gputype",
    uuids="volcano.sh/vgpu-use-gpuuuid",
    exclude_uuids="volcano.sh/vgpu-nouse-gpuuuid",
    mode="volcano.sh/vgpu-mode",
)


def _constrain(request: GPURequest, pod: PodFacts) -> GPURequest | tuple[Violation, ...]:
    answer = ANNOTATIONS.constrain(request, pod)
    problems = one_container(pod, RESOURCES.names, RESOURCES.number)
    if not problems:
        return answer
    return problems if isinstance(answer, GPURequest) else (*answer, *problems)


def one_container(pod: PodFacts, resources: Collection[str], example: str) -> tuple[Violation, ...]:
    """A violation where not exactly one ordinary container has limits of these resources."""
    asking = [each.path for each in pod.containers if not each.limits.keys().isdisjoint(resources)]
    if len(asking) == 1 and asking[0].startswith("spec.containers"):
        return ()
    problem = Violation(
        "vgpu-one-container",
        "spec.containers",
        first_of(asking, 20),
        "the node plugin of Volcano serves one container of a pod, and no init container",
        f"{example} in one container of spec.containers",
        f'{example}: "1" in the container that computes',
    )
    return (problem,)


def _cards(node: NodeFacts) -> tuple[Card, ...]:
    parts = [each.split(",") for each in node.annotations.get(REGISTER, "").split(":") if each]
    unhealthy = unhealthy_cards(node)
    return registered(_from_fields(place, each, place in unhealthy) for place, each in enumerate(parts))


def unhealthy_cards(node: NodeFacts) -> tuple[int, ...]:
    """The indexes in the list that Volcano's plugins write on a node. Raises ValueError."""
    text = node.annotations.get(UNHEALTHY, "")
    found = indexes(text.replace(" ", ""))
    if text.strip() and not found:
        raise ValueError(f"{UNHEALTHY} is not a list of indexes")
    return found


def _from_fields(place: int, fields: list[str], listed: bool) -> RegisteredCard:
    if len(fields) != 6:
        raise ValueError(f"a card of {len(fields)} fields")
    uuid, _, memory, model, health, mode = fields
    healthy = health in TRUE and mode in ("", "hami-core") and not listed
    return RegisteredCard(uuid, place, model, natural(memory), healthy)


def _at_binding(placed: PlacedRequest) -> dict[str, str]:
    devices = ";".join(devices_text(placed.placement, placed.containers))
    seconds = str(placed.now_ns // 1_000_000_000)
    return {
        "volcano.sh/vgpu-node": placed.node,
        TIME: seconds,
        ALLOCATED: devices,
        TO_ALLOCATE: devices,
        PHASE: "allocating",
        "volcano.sh/bind-time": seconds,
    }


def _found(pod: PodFacts, request: GPURequest) -> Found:
    return devices_found(pod.annotations.get(ALLOCATED), request)


DIALECT = Dialect(
    name="volcano",
    resources=RESOURCES.names,
    examples=RESOURCES.examples,
    read=RESOURCES.read,
    at_admission=nothing_at_admission,
    at_binding=_at_binding,
    found=_found,
    owned=(
        "volcano.sh/bind-",
        "volcano.sh/devices-",
        "volcano.sh/vgpu-ids-",
        "volcano.sh/vgpu-node",
        TIME,
    ),
    plugin_erases=(PHASE, TO_ALLOCATE, TIME),
    plugin_shows=True,
    plugin_limits=True,
    cards=_cards,
    node_annotation=REGISTER,
    node_lock="hamivgpu",
    replaces=("volcano",),
    ignored_by_scheduler=RESOURCES.amounts,
    reads=ANNOTATIONS.names,
    constrain=_constrain,
    vgpu=RESOURCES,
    counts=(RESOURCES.number,),
)
