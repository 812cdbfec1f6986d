"""HAMi on NVIDIA's cards: ``nvidia.com/gpu`` with ``gpumem``, ``gpumem-percentage``, ``gpucores`` and
``priority``.

Its node plugin takes the pod that the node's lock names, and hands out the devices of its annotation
container by container, init containers first. ``nvidia.com/gpu`` alone is a whole card. Source: HAMi v2
(`docs/dialects.md`).
"""

from timekeeper.core.dialects import nvidia
from timekeeper.core.dialects.amounts import NodeFacts, PodFacts
from timekeeper.core.dialects.dialect import Dialect, Found, PlacedRequest, nothing_at_admission
from timekeeper.core.dialects.vgpu import (
    TRUE,
    RegisteredCard,
    VgpuResources,
    devices_found,
    devices_text,
    natural,
    numa_node,
    registered,
)
from timekeeper.core.json_values import decoded
from timekeeper.core.name_lists import listed
from timekeeper.core.values import Card, GPURequest

REGISTER = "hami.io/node-nvidia-register"
CORDON = "hami.io/device-cordon"
LOCK = "hami.io/mutex.lock"
NODE = "hami.io/vgpu-node"
PHASE, TO_ALLOCATE = "hami.io/bind-phase", "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"

RESOURCES = VgpuResources(
    nvidia.GPU,
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
    one_by_default=True,
)

_MODES = ("", "hami-core")  # of a card that is divided by HAMi-core


def _cards(node: NodeFacts) -> tuple[Card, ...]:
    text = node.annotations.get(REGISTER, "")
    found = _from_json(text) if text.lstrip().startswith("[") else _from_text(text)
    return registered(found, listed(node.annotations, CORDON))


def _from_json(text: str) -> list[RegisteredCard]:
    cards = decoded(text)
    if not isinstance(cards, list) or not all(isinstance(each, dict) for each in cards):
        raise ValueError("not a list of objects")
    return [_from_object(each) for each in cards]


def _from_object(raw: dict[str, object]) -> RegisteredCard:
    """The plugin leaves out fields that are 0, false or empty."""
    return RegisteredCard(
        str(raw.get("id", "")),
        natural(raw.get("index", 0)),
        str(raw.get("type", "")),
        natural(raw.get("devmem", 0)),
        raw.get("health") is True and raw.get("mode", "") in _MODES,
        numa_node(raw.get("numa", 0)),
    )


def _from_text(text: str) -> list[RegisteredCard]:
    return [_from_fields(each.split(",")) for each in text.split(":") if each]


def _from_fields(fields: list[str]) -> RegisteredCard:
    """Seven fields, or nine with index and mode."""
    if len(fields) not in (7, 9):
        raise ValueError(f"a card of {len(fields)} fields")
    uuid, _, memory, _, model, numa, health, *more = fields
    index = natural(more[0]) if more else None
    healthy = health in TRUE and (not more or more[1] in _MODES)
    return RegisteredCard(uuid, index, model, natural(memory), healthy, numa_node(numa))


def _at_binding(placed: PlacedRequest) -> dict[str, str]:
    texts = devices_text(placed.placement, (*placed.init_containers, *placed.containers))
    devices = "".join(f"{text};" for text in texts)
    seconds = str(placed.now_ns // 1_000_000_000)
    return {
        NODE: placed.node,
        "hami.io/vgpu-time": seconds,
        TO_ALLOCATE: devices,
        ALLOCATED: devices,
        PHASE: "allocating",
        "hami.io/bind-time": seconds,
    }


def _found(pod: PodFacts, request: GPURequest) -> Found:
    return devices_found(pod.annotations.get(ALLOCATED), request)


DIALECT = Dialect(
    name="hami",
    resources=RESOURCES.amounts,
    shared=(nvidia.GPU,),
    serves=("nvidia",),
    examples=RESOURCES.examples,
    read=RESOURCES.read,
    at_admission=nothing_at_admission,
    at_binding=_at_binding,
    found=_found,
    owned=("hami.io/vgpu-", "hami.io/bind-"),
    plugin_erases=(PHASE, TO_ALLOCATE),
    plugin_shows=True,
    plugin_limits=True,
    cards=_cards,
    node_annotation=REGISTER,
    node_label=NODE,
    replaces=("hami-scheduler",),
    node_lock=LOCK,
    ignored_by_scheduler=RESOURCES.amounts,
    reads=nvidia.ANNOTATIONS.names,
    constrain=nvidia.ANNOTATIONS.constrain,
    vgpu=RESOURCES,
    counts=(RESOURCES.number,),
    variables={RESOURCES.priority: "CUDA_TASK_PRIORITY"},
)
