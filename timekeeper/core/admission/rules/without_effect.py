"""Amounts and settings that nothing reads, because they stand in a wrong place or beside a number of cards of
zero: the pod would run without what its user wrote.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Literal

from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.dialects import BY_ANNOTATION, BY_LABEL, DIALECTS, PREFIXES
from timekeeper.core.dialects.others import kai
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.quantity import integral
from timekeeper.core.request.zeros import cardless
from timekeeper.core.violation import Violation, shown

RULE = "without-effect"
_RESOURCES = frozenset(name for each in DIALECTS for name in (*each.resources, *each.shared))
_OURS = frozenset(names.WRITABLE_ANNOTATIONS)
# what users write in annotations and labels, beside requests
_ANNOTATIONS = _OURS.union(
    BY_ANNOTATION, (kai.CONTAINER,), *(each.reads or () for each in DIALECTS if not each.labels)
)
_LABELS = frozenset(BY_LABEL).union(*(each.reads or () for each in DIALECTS if each.labels))
_COUNTED_IN_METADATA = tuple(
    each for each in DIALECTS if each.counts and not each.resources and not each.prefix
)
_NEAR = 0.75  # of `difflib`, without the domain

Field = Literal["annotations", "labels"]
_FIELDS: tuple[Field, ...] = ("annotations", "labels")


def without_effect(pod: Json) -> Iterator[Violation]:
    """Those of a pod. What nobody may write in its metadata is `forged`'s."""
    spec, metadata = mapping(pod.get("spec")), mapping(pod.get("metadata"))
    for part in ("initContainers", "containers"):
        for index, container in enumerate(map(mapping, sequence(spec.get(part)))):
            for count, beside in cardless(mapping(container.get("resources"))):
                yield _cardless(f"spec.{part}[{index}].resources.limits[{count}]", count, beside)
    for name, amount in mapping(mapping(spec.get("resources")).get("limits")).items():
        if _is_resource(name, amount):
            yield _misplaced(f"spec.resources.limits[{name}]", amount, _IN_LIMITS)
    for field in _FIELDS:
        for name, value in mapping(metadata.get(field)).items():
            right = "" if name.startswith(f"{names.DOMAIN}/") else _right_place(name, value, field)
            if right:
                yield _misplaced(f"metadata.{field}[{name}]", value, right)
    yield from _cardless_metadata(metadata)


def of_workload(workload: Json, kind: str, templates: Iterable[tuple[str, Json]]) -> Iterator[Violation]:
    """Those of a workload's own metadata, which its pods do not get. ``templates``: each with its path."""
    every = tuple(templates)
    of_cron_job = mapping(mapping(workload.get("spec")).get("jobTemplate"))
    owners = (("", workload), ("spec.jobTemplate.", of_cron_job))
    for at, owner in owners if every else ():
        for field in _FIELDS:
            for name, value in mapping(mapping(owner.get("metadata")).get(field)).items():
                right = _right_place(name, value, field) or _of_pods(name, field, every[0][0])
                in_pods = any(name in mapping(mapping(each.get("metadata")).get(field)) for _, each in every)
                if right and not in_pods:
                    yield _misplaced(
                        f"{at}metadata.{field}[{name}]", value, right, f"no pod of a {kind} gets it"
                    )


_IN_LIMITS = "resources.limits of a container"


def _right_place(name: str, value: object, field: Field) -> str:
    """Where this annotation or label of a pod belongs; "" where it is right, or not known."""
    if field == "annotations" and name in _LABELS:
        return "metadata.labels"
    if field == "labels" and name in _ANNOTATIONS:
        return "metadata.annotations"
    return _IN_LIMITS if _is_resource(name, value) else ""


def _is_resource(name: str, amount: object) -> bool:
    """Whether this asks for GPUs. A label may say ``true`` of a resource, and plugins of accelerators that no
    dialect reads write devices into an annotation of its name."""
    if integral(amount) == 0 or amount in ("true", "false"):
        return False
    if name in _RESOURCES or name.startswith(PREFIXES):
        return True
    return integral(amount) is not None and accelerator_of(name) is not None


def _of_pods(name: str, field: Field, at: str) -> str:
    """Where this annotation or label of a workload belongs; "" where none of that name is of pods."""
    known = _ANNOTATIONS if field == "annotations" else _LABELS
    domain, slash, rest = name.partition("/")
    if name in known:
        return f"{at}.metadata.{field}"
    if field == "annotations" and slash and domain == names.DOMAIN:
        words = [each.partition("/")[2] for each in _OURS]
        near = get_close_matches(rest, words, 1, _NEAR)
        return f"{at}.metadata.{field}, as {domain}/{near[0]}" if near else ""
    return ""


def _cardless_metadata(metadata: Json) -> Iterator[Violation]:
    """Of dialects that count cards in an annotation or a label."""
    for dialect in _COUNTED_IN_METADATA:
        field = "annotations" if dialect.annotations else "labels"
        given = mapping(metadata.get(field))
        asked = [
            name for name in (*dialect.annotations, *dialect.labels) if integral(given.get(name, 0)) != 0
        ]
        for count in dialect.counts:
            if asked and count in given and count not in asked:
                yield _cardless(f"metadata.{field}[{count}]", count, asked[0])


def _cardless(path: str, count: str, beside: str) -> Violation:
    problem = f"no card is requested, so {beside} beside it has no effect"
    return Violation(RULE, path, shown("0"), problem, "the number of cards, or neither", f'{count}: "1"')


def _misplaced(path: str, value: object, right: str, why: str = "nothing reads it here") -> Violation:
    name = path.partition("[")[2].removesuffix("]")
    got = shown(str(value))
    return Violation(RULE, path, got, f"{why}; it belongs in {right}", right, f"{name}: {got}")
