"""Amounts and settings that nothing reads, because they stand in a wrong place or beside a number of cards of
zero: the pod would run without what its user wrote.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache

from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.admission.rules.forged import IN_LIMITS, RESOURCES, is_owned
from timekeeper.core.dialects import BY_ANNOTATION, BY_LABEL, DIALECTS, PREFIXES
from timekeeper.core.dialects.others import kai
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import integral
from timekeeper.core.request.zeros import cardless
from timekeeper.core.violation import Violation, shown

RULE = "without-effect"
# what users write in annotations and labels, beside requests
_ANNOTATIONS = frozenset(names.WRITABLE_ANNOTATIONS).union(
    BY_ANNOTATION, *(each.reads or () for each in DIALECTS if not each.labels)
)
_LABELS = frozenset(BY_LABEL).union(*(each.reads or () for each in DIALECTS if each.labels))
_IN_METADATA = frozenset((*BY_ANNOTATION, *BY_LABEL))
_OURS = f"{names.DOMAIN}/"
_NEAR = 0.75  # of `difflib`, without the domain


def without_effect(pod: Json) -> Iterator[Violation]:
    """Those of a pod. What users must not write in its metadata is for `forged`."""
    spec = mapping(pod.get("spec"))
    for part in ("initContainers", "containers"):
        for index, container in enumerate(sequence(spec.get(part))):
            if limits := mapping(container.get("resources")).get("limits"):
                yield from _cardless(f"spec.{part}[{index}].resources.limits", limits)
    if "resources" in spec:
        for name, amount in mapping(mapping(spec["resources"]).get("limits")).items():
            if _right_place(name, amount, "limits"):
                yield _misplaced(f"spec.resources.limits[{name}]", amount, IN_LIMITS)
    for field, written in _metadata(pod):
        if not _IN_METADATA.isdisjoint(written):
            if field == "annotations":
                yield from _without_kai(spec.get("schedulerName"), written)
            yield from _cardless(f"metadata.{field}", written)
        for name in written:
            if not _place_of(name, field) or name.startswith(_OURS):
                continue  # nearly always
            if right := _right_place(name, written[name], field):
                yield _misplaced(f"metadata.{field}[{name}]", written[name], right)


def _without_kai(scheduler: object, annotations: Json) -> Iterator[Violation]:
    """A part of a card in KAI's annotations, in a pod that another scheduler places: it would get no card, or
    a whole one."""
    name = kai.part_asked_for(annotations)
    if not name or scheduler in kai.DIALECT.schedulers:
        return
    (own,) = kai.DIALECT.schedulers
    why = f"only {own} gives out a part of a card by it, and another scheduler places this pod"
    allowed = f"schedulerName: {own}, or {names.GPU_PERCENT} in {IN_LIMITS}"
    got = shown(str(annotations[name]))
    yield Violation(RULE, f"metadata.annotations[{name}]", got, why, allowed, f"schedulerName: {own}")


def of_workload(workload: Json, kind: str, templates: Sequence[tuple[str, Json]]) -> Iterator[Violation]:
    """Those of a workload's own metadata, which its pods do not get. ``templates``: each with its path."""
    if not templates:
        return
    of_cron_job = mapping(mapping(workload.get("spec")).get("jobTemplate"))
    why = f"no pod of a {kind} gets it"
    for at, owner in (("", workload), ("spec.jobTemplate.", of_cron_job)):
        for field, written in _metadata(owner):
            in_pods = {name for _, template in templates for name in dict(_metadata(template))[field]}
            for name, value in written.items():
                right = _right_place(name, value, field) or _of_pods(name, field)
                if right.startswith("metadata."):
                    right = f"{templates[0][0]}.{right}"
                if right and name not in in_pods:
                    yield _misplaced(f"{at}metadata.{field}[{name}]", value, right, why)


def _metadata(owner: Json) -> tuple[tuple[str, Json], ...]:
    metadata = mapping(owner.get("metadata"))
    annotations, labels = mapping(metadata.get("annotations")), mapping(metadata.get("labels"))
    return ("annotations", annotations), ("labels", labels)


def _right_place(name: str, value: object, field: str) -> str:
    """Where this annotation or label of a pod belongs; "" where it is right, or not known. Zeros ask for
    nothing, a label may say ``true`` of a resource, and plugins of accelerators that no dialect reads write
    devices into an annotation of its name."""
    place = _place_of(name, field)
    if place != IN_LIMITS:
        return place
    amount = integral(value)
    writes_devices = amount is None and accelerator_of(name) is not None
    return "" if amount == 0 or value in ("true", "false") or writes_devices else place


@lru_cache(maxsize=1024)
def _place_of(name: str, field: str) -> str:
    """The same of the name alone."""
    if field == "annotations" and name in _LABELS:
        return "metadata.labels"
    if field == "labels" and name in _ANNOTATIONS:
        return "metadata.annotations"
    is_of_gpus = name in RESOURCES or name.startswith(PREFIXES) or accelerator_of(name)
    return IN_LIMITS if is_of_gpus and not is_owned(name) else ""


def _of_pods(name: str, field: str) -> str:
    """Where this annotation or label of a workload belongs; "" where none of that name is of pods."""
    if name in (_ANNOTATIONS if field == "annotations" else _LABELS):
        return f"metadata.{field}"
    if field == "labels" or not name.startswith(_OURS):
        return ""
    words = [annotation.removeprefix(_OURS) for annotation in names.WRITABLE_ANNOTATIONS]
    near = get_close_matches(name.removeprefix(_OURS), words, 1, _NEAR)
    return f"metadata.{field}, as {_OURS}{near[0]}" if near else ""


def _cardless(path: str, given: Json) -> Iterator[Violation]:
    for count, beside in cardless(given):
        why = f"no card is requested, so {beside} beside it has no effect"
        yield Violation(RULE, f"{path}[{count}]", shown("0"), why, "the number, or neither", f'{count}: "1"')


def _misplaced(path: str, value: object, right: str, why: str = "nothing reads it here") -> Violation:
    name = path.partition("[")[2].removesuffix("]")
    got = shown(str(value))
    return Violation(RULE, path, got, f"{why}; it belongs in {right}", right, f"{name}: {got}")
