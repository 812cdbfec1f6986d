"""What a pod's annotations say about which cards may be chosen for it, and what can be wrong with that."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from timekeeper.core import names
from timekeeper.core.values import WHOLE_MILLI, Ask, ContainerAsk
from timekeeper.core.violation import Violation, shown

Json = Mapping[str, Any]

TOPOLOGIES = ("pair", "numa", "node")

_LISTS = ((names.MODELS, "H100,A100"), (names.EXCLUDE_MODELS, "T4"), (names.UUIDS, "GPU-5a3c..."))


def constraint_violations(
    annotations: Json, asks: Sequence[ContainerAsk], asking: Collection[str]
) -> list[Violation]:
    """Everything that is wrong with the constraints. ``asks``: those that could be read; ``asking``: the
    names of all containers that ask for cards."""
    return [
        *_topology_violations(annotations),
        *_same_gpu_violations(annotations, asks, asking),
        *_empty_lists(annotations),
    ]


def listed(annotations: Json, name: str) -> tuple[str, ...]:
    """The names in an annotation that lists some with commas; empty where it is absent or names none."""
    value = annotations.get(name)
    return (
        tuple(part for part in (p.strip() for p in value.split(",")) if part)
        if isinstance(value, str)
        else ()
    )


def _empty_lists(annotations: Json) -> list[Violation]:
    return [
        Violation(
            "empty-constraint",
            f"metadata.annotations[{name}]",
            shown(annotations[name]),
            "names nothing",
            "names divided by commas",
            f"{name}: {example}",
        )
        for name, example in _LISTS
        if name in annotations and not listed(annotations, name)
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


def _same_gpu_violations(
    annotations: Json, asks: Sequence[ContainerAsk], asking: Collection[str]
) -> list[Violation]:
    if names.SAME_GPU not in annotations:
        return []
    named = listed(annotations, names.SAME_GPU)
    strangers = [each for each in named if each not in asking]
    if strangers:
        return [
            _same_gpu("same-gpu-container", each, "no container of this name asks for a GPU", asking)
            for each in strangers
        ]
    if len(named) < 2 or len(set(named)) < len(named):
        given = annotations[names.SAME_GPU]
        return [_same_gpu("same-gpu-container", given, "not two or more different containers", asking)]
    problem = _conflict([each for each in asks if each.container in named])
    return [_same_gpu("same-gpu-conflict", annotations[names.SAME_GPU], problem, asking)] if problem else []


def _same_gpu(rule: str, got: object, problem: str, asking: Collection[str]) -> Violation:
    return Violation(
        rule=rule,
        path=f"metadata.annotations[{names.SAME_GPU}]",
        got=shown(got),
        problem=problem,
        allowed=f"containers that together fit on one card, out of {', '.join(sorted(asking))}"
        if rule == "same-gpu-conflict"
        else ", ".join(sorted(asking)) or "names of containers with a GPU limit",
        example="removing the annotation",
    )


def _conflict(group: Sequence[ContainerAsk]) -> str:
    """Why no card whatever could hold these containers, "" where one could. Those count together that run at
    the same time: the ordinary ones and the sidecars, and each init container with the sidecars before it."""
    if any(each.ask.devices > 1 for each in group):
        return "one of them asks for more than one card"
    moments = [[each.ask for each in group if not each.init]]
    for at, each in enumerate(group):
        if each.init:
            moments.append([each.ask, *(before.ask for before in group[:at] if not before.init)])
    return "one card cannot hold what they ask" if any(map(_too_much, moments)) else ""


def _too_much(together: Iterable[Ask]) -> bool:
    asks = list(together)
    whole_beside_others = len(asks) > 1 and any(ask.whole for ask in asks)
    return whole_beside_others or sum(ask.share_milli for ask in asks) > WHOLE_MILLI
