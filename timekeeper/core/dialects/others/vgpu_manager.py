"""vgpu-manager: ``nvidia.com/vgpu-number`` cards, with cores and memory of each, which its own scheduler
places.

Memory counts in MiB, as its nodes do by default. Source: vgpu-manager's webhook, scheduler and device plugin
(`docs/dialects.md`).
"""

from timekeeper.core.dialects.amounts import NodeFacts
from timekeeper.core.dialects.dialect import Dialect, nothing_at_admission, nothing_at_binding
from timekeeper.core.dialects.vgpu import RegisteredCard, VgpuResources, natural, registered
from timekeeper.core.json_values import decoded
from timekeeper.core.values import Card

REGISTER = "nvidia.com/node-device-register"
RESOURCES = VgpuResources(
    number="nvidia.com/vgpu-number",
    memory="nvidia.com/vgpu-memory",
    percentage="",
    cores="nvidia.com/vgpu-cores",
    one_by_default=True,
)


def _cards(node: NodeFacts) -> tuple[Card, ...]:
    cards = decoded(node.annotations.get(REGISTER, "[]"))
    if not isinstance(cards, list) or not all(isinstance(each, dict) for each in cards):
        raise ValueError("not a list of objects")
    return registered(
        RegisteredCard(
            str(each.get("uuid", "")),
            natural(each.get("id", 0)),
            str(each.get("type", "")),
            natural(each.get("memory", 0)),
            each.get("healthy") is True,
        )
        for each in cards
    )


DIALECT = Dialect(
    name="vgpu-manager",
    resources=RESOURCES.names,
    examples=RESOURCES.examples,
    read=RESOURCES.read,
    at_admission=nothing_at_admission,
    at_binding=nothing_at_binding,
    plugin_shows=True,
    plugin_limits=True,
    vgpu=RESOURCES,
    counts=(RESOURCES.number,),
    schedulers=("vgpu-scheduler",),
    placed_by_others=True,
    placement_annotations=(
        "nvidia.com/pre-allocated",
        "nvidia.com/real-allocated",
        "nvidia.com/predicate-node",
        "nvidia.com/predicate-time",
    ),
    placement_labels=("nvidia.com/assigned-phase", "nvidia.com/metrics-node"),
    accounts=(
        "system:serviceaccount:kube-system:vgpu-manager-scheduler",
        "system:serviceaccount:kube-system:vgpu-manager-device-plugin",
    ),
    charged_cards=_cards,
)
