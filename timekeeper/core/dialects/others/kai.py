"""KAI: a fraction or an amount of memory of one card or several, in annotations of a pod that KAI places.

Whole cards are `nvidia.com/gpu`, in the dialect `nvidia`. Source: KAI-Scheduler's admission and binder
(`docs/dialects.md`).
"""

import re
from dataclasses import replace
from fractions import Fraction

from timekeeper.core.dialects.amounts import MAX_CARDS, MAX_MEMORY_MIB, Container, PodFacts
from timekeeper.core.dialects.dialect import (
    Dialect,
    nothing_at_admission,
    nothing_at_binding,
    nothing_to_read,
)
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.values import WHOLE_MILLI, Ask, ContainerAsk
from timekeeper.core.violation import Violation, shown

FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"  # MiB of each card
DEVICES = "gpu-fraction-num-devices"
CONTAINER = "gpu-fraction-container-name"

_AMOUNTS = frozenset((FRACTION, MEMORY, DEVICES))

FOR_RUNTIME = "nvidia.com/container."  # a container's name follows, and what its binder or webhook says of it
REQUEST = ".gpu-memory.request"

_DECIMAL = re.compile(r"\+?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_EXAMPLE = f'{FRACTION}: "0.5"'


def _read(pod: PodFacts) -> tuple[ContainerAsk, ...] | tuple[Violation, ...]:
    zeros = {name for name in _AMOUNTS if integral(pod.annotations.get(name)) == 0}
    asked = {name: text for name, text in pod.annotations.items() if name not in zeros}
    if DEVICES in zeros or _AMOUNTS.isdisjoint(asked):
        return ()
    pod = replace(pod, annotations=asked)
    amounts = _share(pod), _whole(pod, MEMORY, MAX_MEMORY_MIB, "2000"), _whole(pod, DEVICES, MAX_CARDS, "2")
    container = _container(pod)
    broken = tuple(each for each in (*amounts, container, _contradiction(pod)) if isinstance(each, Violation))
    share_milli, memory_mib, devices = (each if isinstance(each, int) else 0 for each in amounts)
    if broken or not isinstance(container, Container):
        return broken
    return (ContainerAsk(container.name, container.init, Ask(devices or 1, share_milli, memory_mib)),)


def _share(pod: PodFacts) -> int | Violation:
    """Thousandths, rounded up; 0 without a fraction."""
    if FRACTION not in pod.annotations:
        return 0
    given = pod.annotations[FRACTION]
    value = Fraction(given) if isinstance(given, str) and _DECIMAL.fullmatch(given) else None
    if value is not None and 0 < value < 1:
        return -(-value.numerator * WHOLE_MILLI // value.denominator)
    problem = "not a part of one card; whole cards are requested by nvidia.com/gpu"
    return _wrong("share-range", FRACTION, given, problem, "a decimal number between 0 and 1", _EXAMPLE)


def _whole(pod: PodFacts, name: str, most: int, example: str) -> int | Violation:
    """0 without the annotation."""
    if name not in pod.annotations:
        return 0
    given = pod.annotations[name]
    is_number = isinstance(given, str) and re.fullmatch(r"[0-9]{1,18}", given, re.ASCII)
    if is_number and 1 <= int(given) <= most:
        return int(given)
    problem = "too large" if is_number and int(given) else "not a positive whole number"
    allowed = f"a whole number from 1 to {most}{' MiB' if name == MEMORY else ''}"
    return _wrong("amount", name, given, problem, allowed, f'{name}: "{example}"')


def _contradiction(pod: PodFacts) -> Violation | None:
    if FRACTION in pod.annotations and MEMORY in pod.annotations:
        problem = f"{FRACTION} and {MEMORY} exclude each other"
        return _wrong("combination", MEMORY, pod.annotations[MEMORY], problem, "one of them", _EXAMPLE)
    if FRACTION not in pod.annotations and MEMORY not in pod.annotations:
        problem = f"it requires {FRACTION} or {MEMORY}"
        return _wrong("combination", DEVICES, pod.annotations[DEVICES], problem, "one of them too", _EXAMPLE)
    return None


def _container(pod: PodFacts) -> Container | Violation:
    """The first one of the pod's ordinary containers, or the named one of them. KAI names the ConfigMap of an
    init container by its place, which Bursar's sidecar changes."""
    name = pod.annotations.get(CONTAINER)
    ordinary = [each for each in pod.containers if each.path.startswith("spec.containers[")]
    answer = next((each for each in ordinary if name is None or each.name == name), None)
    if answer is not None:
        return answer
    problem = "none of spec.containers has this name, and init containers get no part of a card"
    allowed = "the name of a container in spec.containers, or no annotation"
    return _wrong("combination", CONTAINER, name or "", problem, allowed, f"{CONTAINER}: main")


def _wrong(rule: str, name: str, got: object, problem: str, allowed: str, example: str) -> Violation:
    return Violation(rule, f"metadata.annotations[{name}]", shown(got), problem, allowed, example)


def part_asked_for(annotations: Json) -> str:
    """The annotation that asks for a part of a card in KAI's form, whatever scheduler reads it; "": none."""
    memory, share = annotations.get(MEMORY), annotations.get(FRACTION)
    if isinstance(share, str) and _DECIMAL.fullmatch(share) and Fraction(share) > 0:
        return FRACTION
    is_number = isinstance(memory, str) and re.fullmatch(r"[0-9]{1,18}", memory, re.ASCII)
    return MEMORY if is_number and int(str(memory)) else ""


def is_of_its_webhook(pod: Json, annotation: str) -> bool:
    """Whether KAI's webhook, in its mode NvFractions, wrote this annotation at the pod's creation: it repeats
    the pod's own `gpu-memory`."""
    if not (annotation.startswith(FOR_RUNTIME) and annotation.endswith(REQUEST)):
        return False
    annotations, spec = annotations_of(pod), mapping(pod.get("spec"))
    asked = annotations.get(MEMORY)
    is_number = isinstance(asked, str) and re.fullmatch(r"[0-9]{1,18}", asked, re.ASCII)
    is_its_own = spec.get("schedulerName") in DIALECT.schedulers
    return bool(is_its_own and is_number) and integral(annotations[annotation]) == int(str(asked)) << 20


DIALECT = Dialect(
    name="kai",
    resources=(),
    examples={},
    read=nothing_to_read,
    at_admission=nothing_at_admission,
    at_binding=nothing_at_binding,
    annotations=(FRACTION, MEMORY, DEVICES),
    read_pod=_read,
    reads=(CONTAINER,),
    plugin_shows=True,
    schedulers=("kai-scheduler",),
    placed_by_others=True,
    placement_annotations=("received-resource-type",),
    placement_labels=("runai-gpu-group", "runai-gpu-group/"),
    accounts=("system:serviceaccount:kai-scheduler:binder",),
    for_runtime=(FOR_RUNTIME,),
    settled_annotations=(CONTAINER, "runai/shared-gpu-configmap"),
    config_maps=r"[a-z0-9.-]*-shared-gpu-i?[0-9]+",
    counts=(DEVICES,),
)
