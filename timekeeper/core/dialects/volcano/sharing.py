"""Volcano's former GPU sharing: ``volcano.sh/gpu-memory``, or ``volcano.sh/gpu-number`` for whole cards.

Its plugin serves one of the two, by its flag ``gpu-strategy``. Where it serves memory, it also counts the
node's cards in ``gpu-number``. It counts memory in units of ``gpu-memory-factor`` MiB, a flag that neither
pod nor node names, so here a unit stands for a MiB on both sides. It takes the pod of its node with the
earliest predicate time of which a container has as many units as the kubelet asks for. Sources: volcano,
devices of volcano-sh (`docs/dialects.md`).
"""

from collections.abc import Callable
from functools import partial

from timekeeper.core.dialects.amounts import (
    MAX_CARDS,
    MAX_MEMORY_MIB,
    ContainerLimits,
    Most,
    NodeFacts,
    PodFacts,
    indexes,
    units,
)
from timekeeper.core.dialects.dialect import Dialect, Found, PlacedRequest, nothing_at_admission
from timekeeper.core.dialects.percent import MODEL_LABEL, UNKNOWN_MEMORY_MIB, label_mib
from timekeeper.core.dialects.volcano.virtual import one_container, unhealthy_cards
from timekeeper.core.values import WHOLE_MILLI, Ask, Card, GPURequest
from timekeeper.core.violation import Violation

MEMORY, NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
INDEX, TIME, ASSIGNED = "volcano.sh/gpu-index", "volcano.sh/predicate-time", "volcano.sh/gpu-assigned"


_MOST_MEMORY = Most(
    MEMORY, MAX_MEMORY_MIB, "units of the plugin (MiB unless its flag gpu-memory-factor is set)"
)
_MOST_CARDS = Most(NUMBER, MAX_CARDS, "cards", "amount", "more cards than any node has")


def _read_memory(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    found = units(limits, _MOST_MEMORY, "1024")
    return Ask(1, 0, found) if isinstance(found, int) else (found,) if found else ()


def _read_number(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    found = units(limits, _MOST_CARDS, "1")
    return Ask(found, WHOLE_MILLI, 0) if isinstance(found, int) else (found,) if found else ()


def _one_container(resource: str, request: GPURequest, pod: PodFacts) -> GPURequest | tuple[Violation, ...]:
    return one_container(pod, (resource,), resource) or request


def _cards(node: NodeFacts) -> tuple[Card, ...]:
    """The cards, all alike: of equal parts of the node's memory where the plugin serves memory."""
    count = min(node.capacity.get(NUMBER, 0), MAX_CARDS)
    if MEMORY in node.capacity:
        memory = node.capacity[MEMORY] // count if count else 0
    else:
        memory = label_mib(node.labels) or UNKNOWN_MEMORY_MIB
    unhealthy = unhealthy_cards(node)
    model = node.labels.get(MODEL_LABEL, "GPU")
    return tuple(
        Card(f"card{index}", index, model, memory, healthy=index not in unhealthy)
        for index in range(count if memory else 0)
    )


def _at_binding(placed: PlacedRequest) -> dict[str, str]:
    (slices,) = (slices for _, slices in placed.placement.containers)
    return {
        TIME: str(placed.now_ns),
        INDEX: ",".join(str(each.index) for each in slices),
        ASSIGNED: "false",
    }


def _found(pod: PodFacts, request: GPURequest) -> Found:
    return dict.fromkeys((each.container for each in request.asks), indexes(pod.annotations.get(INDEX)))


def _dialect(
    name: str,
    resource: str,
    example: str,
    read: Callable[[ContainerLimits], Ask | tuple[Violation, ...]],
    node_resources: tuple[str, ...] = (),
    memory_units: str = "",
) -> Dialect:
    return Dialect(
        name=name,
        resources=(resource,),
        node_resources=node_resources,
        memory_units=memory_units,
        examples={resource: example},
        read=read,
        at_admission=nothing_at_admission,
        at_binding=_at_binding,
        found=_found,
        owned=(INDEX, TIME, ASSIGNED),
        plugin_writes=(ASSIGNED,),
        plugin_shows=True,
        cards=_cards,
        node_lock="gpu",
        replaces=("volcano",),
        constrain=partial(_one_container, resource),
    )


DIALECTS = (
    _dialect("volcano-memory", MEMORY, "1024", _read_memory, (NUMBER,), MEMORY),
    _dialect("volcano-number", NUMBER, "1", _read_number),
)
