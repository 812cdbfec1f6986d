"""Which cards a pod's annotations allow, and the mistakes in them."""

from collections.abc import Collection, Iterable, Sequence

from timekeeper.core import names
from timekeeper.core.dialects.amounts import MAX_MEMORY_MIB
from timekeeper.core.dialects.moments import at_once
from timekeeper.core.json_values import Json
from timekeeper.core.name_lists import excess, names_in, too_long
from timekeeper.core.quantity import integral
from timekeeper.core.values import WHOLE_MILLI, Ask, ContainerAsk
from timekeeper.core.violation import Violation, first_of, shown

TOPOLOGIES = ("pair", "numa", "node")

_MAX_LISTED = 20  # containers in one message

_LISTS = {
    names.MODELS: "H100,A100",
    names.EXCLUDE_MODELS: "T4",
    names.UUIDS: "GPU-5a3c...",
    names.SAME_GPU: "main,logger",
}


def constraint_violations(
    annotations: Json, asks: Sequence[ContainerAsk], asking: Collection[str]
) -> list[Violation]:
    """Every mistake in the constraints. ``asks``: the readable requests; ``asking``: the names of all
    containers that request cards."""
    return [
        *_topology_violations(annotations),
        *_same_gpu_violations(annotations, asks, asking),
        *_empty_lists(annotations),
        *_long_lists(annotations),
        *_min_memory_violations(annotations),
    ]


def _long_lists(annotations: Json) -> list[Violation]:
    found = (too_long(annotations, name, example) for name, example in _LISTS.items())
    return [each for each in found if each]


def _empty_lists(annotations: Json) -> list[Violation]:
    return [
        Violation(
            "empty-constraint",
            f"metadata.annotations[{name}]",
            shown(annotations[name]),
            "the list is empty",
            "names separated by commas",
            f"{name}: {example}",
        )
        for name, example in _LISTS.items()
        if name != names.SAME_GPU
        and name in annotations
        and not excess(annotations, name)
        and not names_in(annotations, name)
    ]


def _topology_violations(annotations: Json) -> list[Violation]:
    given = annotations.get(names.TOPOLOGY)
    if given is None or given in TOPOLOGIES:
        return []
    return [
        Violation(
            "unknown-topology",
            f"metadata.annotations[{names.TOPOLOGY}]",
            shown(given),
            "no such topology",
            ", ".join(TOPOLOGIES),
            f"{names.TOPOLOGY}: numa",
        )
    ]


def _min_memory_violations(annotations: Json) -> list[Violation]:
    given = annotations.get(names.MIN_GPU_MEMORY)
    value = integral(given)
    if given is None or (value is not None and 1 <= value <= MAX_MEMORY_MIB):
        return []
    return [
        Violation(
            "min-gpu-memory",
            f"metadata.annotations[{names.MIN_GPU_MEMORY}]",
            shown(given),
            "not an amount of memory that a card can have",
            f"a whole number of MiB from 1 to {MAX_MEMORY_MIB}",
            f'{names.MIN_GPU_MEMORY}: "40000"',
        )
    ]


def _same_gpu_violations(
    annotations: Json, asks: Sequence[ContainerAsk], asking: Collection[str]
) -> list[Violation]:
    if names.SAME_GPU not in annotations or excess(annotations, names.SAME_GPU):
        return []
    named = names_in(annotations, names.SAME_GPU)
    unknown = next((each for each in named if each not in asking), None)
    if unknown is not None:
        return [_same_gpu("same-gpu-container", unknown, "no container of this name requests a GPU", asking)]
    if len(named) < 2 or len(set(named)) < len(named):
        given = annotations[names.SAME_GPU]
        return [_same_gpu("same-gpu-container", given, "must name at least two different containers", asking)]
    problem = _conflict([each for each in asks if each.container in named])
    return [_same_gpu("same-gpu-conflict", annotations[names.SAME_GPU], problem, asking)] if problem else []


def _same_gpu(rule: str, got: object, problem: str, asking: Collection[str]) -> Violation:
    known_names = first_of(sorted(asking), _MAX_LISTED)
    return Violation(
        rule=rule,
        path=f"metadata.annotations[{names.SAME_GPU}]",
        got=shown(got),
        problem=problem,
        allowed=f"containers that together fit on one card, out of {known_names}"
        if rule == "same-gpu-conflict"
        else known_names or "names of containers with a GPU limit",
        example="remove the annotation",
    )


def _conflict(group: Sequence[ContainerAsk]) -> str:
    """Why no card can hold these containers, "" if one can. Containers that run at the same time count
    together."""
    if any(each.ask.devices > 1 for each in group):
        return "one of them requests more than one card"
    nothing: list[Ask] = []
    moments = at_once(((each.init, [each.ask]) for each in group), nothing)
    return "their requests together exceed one card" if any(map(_too_much, moments)) else ""


def _too_much(together: Iterable[Ask]) -> bool:
    asks = list(together)
    whole_beside_others = len(asks) > 1 and any(ask.whole for ask in asks)
    return whole_beside_others or sum(ask.share_milli for ask in asks) > WHOLE_MILLI
