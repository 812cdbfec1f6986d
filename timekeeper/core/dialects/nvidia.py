"""Whole cards as NVIDIA's device plugin counts them: ``nvidia.com/gpu``. The device plugin chooses the
cards."""

from timekeeper.core.dialects.amounts import MAX_CARDS, MAX_COUNTED, ContainerLimits, NodeFacts, amount
from timekeeper.core.dialects.dialect import Dialect, nothing_at_admission, nothing_at_binding
from timekeeper.core.dialects.percent import UNKNOWN_MEMORY_MIB, label_mib, labelled_model
from timekeeper.core.dialects.vgpu import VgpuAnnotations
from timekeeper.core.names import GPU_PERCENT
from timekeeper.core.quantity import integral, thousandths
from timekeeper.core.values import WHOLE_MILLI, Ask, Card
from timekeeper.core.violation import Violation, shown

GPU = "nvidia.com/gpu"
# HAMi reads these beside this resource; NVIDIA's own plugin does not
ANNOTATIONS = VgpuAnnotations(
    models="nvidia.com/use-gputype",
    exclude_models="nvidia.com/nouse-gputype",
    uuids="nvidia.com/use-gpuuuid",
    exclude_uuids="nvidia.com/nouse-gpuuuid",
    mode="nvidia.com/vgpu-mode",
    numa="nvidia.com/numa-bind",
    policy="hami.io/gpu-scheduler-policy",
)
_ALLOWED = f"1 to {MAX_CARDS} whole cards; for a part of a card use {GPU_PERCENT} instead"


def _read(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    given = limits.amounts[GPU]
    if integral(given) is None:
        example = f'{GPU}: "1"' if thousandths(given) is None else f'{GPU_PERCENT}: "50"'
        return (_violation(limits, f"{GPU} counts whole cards", example),)
    count = amount(limits, GPU, 1, _ALLOWED, "1")
    if not isinstance(count, int):
        return (count,) if count else ()
    if count > MAX_CARDS:
        return (_violation(limits, "more cards than any node has", f'{GPU}: "1"'),)
    return Ask(count, WHOLE_MILLI, 0)


def _counted_cards(node: NodeFacts) -> tuple[Card, ...]:
    count = min(node.capacity.get(GPU, 0), MAX_COUNTED)
    model, memory = labelled_model(node.labels), label_mib(node.labels) or UNKNOWN_MEMORY_MIB
    return tuple(Card(f"card{index}", index, model, memory) for index in range(count))


def _violation(limits: ContainerLimits, problem: str, example: str) -> Violation:
    got = shown(limits.amounts[GPU])
    return Violation("whole-cards-only", limits.at(GPU), got, problem, _ALLOWED, example)


DIALECT = Dialect(
    name="nvidia",
    resources=(GPU,),
    examples={GPU: "1"},
    read=_read,
    at_admission=nothing_at_admission,
    at_binding=nothing_at_binding,
    plugin_chooses=True,
    counted_cards=_counted_cards,
    by_plugin=(GPU,),
    reads=ANNOTATIONS.names,
    constrain=ANNOTATIONS.constrain,
    schedulers=("kai-scheduler", "koord-scheduler", "volcano", "yunikorn"),
)
