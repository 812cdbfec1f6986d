"""Aliyun's gpushare: ``aliyun.com/gpu-mem``, memory of one card for the whole pod.

Its plugin counts in GiB or in MiB, by a flag that neither pod nor node names. Here a unit stands for a MiB on
both sides, so what fits, and what share of a card it is, does not depend on the unit. The plugin finds a
container's pod by the total units of the pod's ordinary containers and the earliest assume time among those
not yet assigned. So it finds no pod with requests in two containers or in an init container; such a container
starts only where the node has one card. Source: gpushare-scheduler-extender, gpushare-device-plugin
(`docs/dialects.md`).
"""

from dataclasses import replace

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
from timekeeper.core.dialects.moments import most_at_once
from timekeeper.core.dialects.percent import MODEL_LABEL
from timekeeper.core.values import Ask, Card, GPURequest
from timekeeper.core.violation import Violation

MEMORY = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"  # of a node's cards
STEM = "ALIYUN_COM_GPU_MEM_"

_MOST = Most(MEMORY, MAX_MEMORY_MIB, "GiB or MiB, as your plugin counts")


def _read(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    found = units(limits, _MOST, "3")
    return Ask(1, 0, found) if isinstance(found, int) else (found,) if found else ()


def _constrain(request: GPURequest, pod: PodFacts) -> GPURequest:
    asking = [each.path for each in pod.containers if MEMORY in each.limits]
    is_found = len(asking) == 1 and asking[0].startswith("spec.containers[")
    return request if is_found else replace(request, lone_card=True)


def _cards(node: NodeFacts) -> tuple[Card, ...]:
    count = min(node.capacity.get(COUNT, 0), MAX_CARDS)
    each = node.capacity.get(MEMORY, 0) // count if count else 0
    model = node.labels.get(MODEL_LABEL, "GPU")
    return tuple(Card(f"card{index}", index, model, each) for index in range(count if each else 0))


def _at_binding(placed: PlacedRequest) -> dict[str, str]:
    slices = [each for _, these in placed.placement.containers for each in these]
    sizes = {card.uuid: card.memory_mib for card in placed.cards}
    return {
        f"{STEM}IDX": str(slices[0].index),
        f"{STEM}POD": str(_most_units(placed)),
        f"{STEM}DEV": str(sizes.get(slices[0].uuid, 0)),
        f"{STEM}ASSIGNED": "false",
        f"{STEM}ASSUME_TIME": str(placed.now_ns),
    }


def _most_units(placed: PlacedRequest) -> int:
    """The most that the pod has at one time."""
    units = {name: sum(each.memory_mib for each in these) for name, these in placed.placement.containers}
    return most_at_once(placed.request.asks, lambda each: units[each.container])


def _found(pod: PodFacts, request: GPURequest) -> Found:
    return dict.fromkeys(
        (each.container for each in request.asks), indexes(pod.annotations.get(f"{STEM}IDX"))
    )


DIALECT = Dialect(
    name="gpushare",
    resources=(MEMORY,),
    node_resources=(COUNT,),
    memory_units=MEMORY,
    examples={MEMORY: "3"},
    read=_read,
    at_admission=nothing_at_admission,
    at_binding=_at_binding,
    found=_found,
    owned=(STEM,),
    plugin_writes=tuple(f"{STEM}{each}" for each in ("ASSIGNED", "ASSUME_TIME", "ASSIGN_TIME")),
    plugin_shows=True,
    cards=_cards,
    one_card=True,
    constrain=_constrain,
    pairs_by_time=True,
)
