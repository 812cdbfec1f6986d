"""Genius: requests in labels of a pod, ``genius/gpu-number`` and others.

Genius gave out no cards: every container saw all cards of its node, and its labels only chose the node. Here
the pod's first container, or the one with `bursar.dev/gpu-placement`, gets whole cards, on a node with
Bursar's agent. Source: the filters and the queue order of Genius (`docs/dialects.md`).
"""

from dataclasses import replace

from timekeeper.core import names
from timekeeper.core.dialects.amounts import (
    MAX_CARDS,
    MAX_MEMORY_MIB,
    Container,
    ContainerLimits,
    PodFacts,
    amount,
)
from timekeeper.core.dialects.dialect import (
    Dialect,
    nothing_at_admission,
    nothing_at_binding,
    nothing_to_read,
)
from timekeeper.core.quantity import integral
from timekeeper.core.values import WHOLE_MILLI, Ask, ContainerAsk, GPURequest
from timekeeper.core.violation import Violation, shown

NUMBER = "genius/gpu-number"
EACH = "genius/gpu-memory-each"  # MiB; a card must have more than this
TOTAL = "genius/gpu-memory-total"  # MiB; the pod's cards must have at least this together
MODELS = ("genius/gpu-model", "genius/model")
PRIORITY = "genius/priority"

_MOST = {NUMBER: MAX_CARDS, EACH: MAX_MEMORY_MIB, TOTAL: MAX_CARDS * MAX_MEMORY_MIB, PRIORITY: 10**9}
_EXAMPLE = {NUMBER: "1", EACH: "8000", TOTAL: "16000", PRIORITY: "10"}
_LONGEST = 63  # characters, as the API server allows in a label


def _read(pod: PodFacts) -> tuple[ContainerAsk, ...] | tuple[Violation, ...]:
    amounts = {label: _amount(pod, label) for label in _MOST}
    given = [label for label in (*MODELS, *_MOST) if label in pod.labels and label != PRIORITY]
    if integral(pod.labels.get(NUMBER)) == 0 or all(amounts.get(label, 1) is None for label in given):
        return ()
    broken = tuple(each for each in amounts.values() if isinstance(each, Violation))
    broken += tuple(_model_violation(pod, label) for label in MODELS if not _is_model(pod, label))
    ordinary = [each for each in pod.containers if each.path.startswith("spec.containers[")]
    chosen = next((each for each in ordinary if _has_placement(each)), ordinary[0] if ordinary else None)
    if chosen is None and not broken:
        problem, example = "the pod has no container that could get the cards", "a container"
        return (Violation("amount", "spec.containers", "", problem, "at least one container", example),)
    number = amounts[NUMBER]
    if broken or chosen is None or isinstance(number, Violation):
        return broken
    return (ContainerAsk(chosen.name, False, Ask(number or 1, WHOLE_MILLI, 0)),)


def _constrain(request: GPURequest, pod: PodFacts) -> GPURequest:
    if not request.asks:
        return request  # `_read` has said why
    each, total, priority = (_amount(pod, label) for label in (EACH, TOTAL, PRIORITY))
    of_each = each + 1 if isinstance(each, int) else 0
    of_total = -(-total // request.asks[0].ask.devices) if isinstance(total, int) else 0
    return replace(
        request,
        min_memory_mib=max(request.min_memory_mib, of_each, of_total),
        model_pattern=next((str(pod.labels[label]).lower() for label in MODELS if label in pod.labels), ""),
        order=priority if isinstance(priority, int) else 0,
    )


def _amount(pod: PodFacts, label: str) -> int | Violation | None:
    allowed = f"a whole number from 1 to {_MOST[label]}{' MiB' if label in (EACH, TOTAL) else ''}"
    if integral(pod.labels.get(label)) == 0:
        return None  # zero asks for nothing, and is the priority of those without one
    labels = ContainerLimits("metadata.labels", "", pod.labels)
    found = amount(labels, label, 1, allowed, _EXAMPLE[label])
    if not isinstance(found, int) or found <= _MOST[label]:
        return found
    got, example = shown(pod.labels[label]), f'{label}: "{_EXAMPLE[label]}"'
    return Violation("amount", f"metadata.labels[{label}]", got, "too large", allowed, example)


def _has_placement(container: Container) -> bool:
    return names.GPU_PLACEMENT in container.limits


def _is_model(pod: PodFacts, label: str) -> bool:
    given = pod.labels.get(label)
    return given is None or (isinstance(given, str) and 0 < len(given.strip(".")) <= len(given) <= _LONGEST)


def _model_violation(pod: PodFacts, label: str) -> Violation:
    return Violation(
        "unreadable-request",
        f"metadata.labels[{label}]",
        shown(pod.labels[label]),
        "no model can have this name",
        f"a part of a model's name, at most {_LONGEST} characters; a dot stands for any character",
        f"{label}: rtx.3090",
    )


DIALECT = Dialect(
    name="genius",
    resources=(),
    examples={},
    read=nothing_to_read,
    labels=(NUMBER, EACH, TOTAL, *MODELS),
    read_pod=_read,
    reads=(PRIORITY,),
    constrain=_constrain,
    on_nodes_of=("bursar",),
    replaces=("genius-scheduler",),
    at_admission=nothing_at_admission,
    at_binding=nothing_at_binding,
    counts=(NUMBER,),
)
