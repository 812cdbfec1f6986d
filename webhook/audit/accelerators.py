"""Findings on accelerators that no dialect reads: which pods hold them, which nodes advertise them, what
`unknownAccelerators` does with them, and what to do."""

from collections.abc import Iterator, Mapping

from timekeeper.core.accelerators import UnknownAccelerators, accelerators_in
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.request.devices import DIALECT, described, device_containers
from timekeeper.core.request.request import containers, parse
from timekeeper.core.violation import Violation, shown

RULE = "unknown-accelerators"  # of findings alone: no rule of admission

_OF_PODS: Mapping[UnknownAccelerators, tuple[str, str]] = {
    "refuse": (
        "the pod is not charged, and a new one is refused",
        "another resource; or unknownAccelerators: meter, which charges new pods",
    ),
    "meter": (
        "the pod is from before unknownAccelerators: meter, and is not charged",
        "the pod created again, which charges it",
    ),
    "pass": (
        "the pod is not charged",
        "nothing, if it is meant; or unknownAccelerators: meter, which charges new pods",
    ),
}
_METERED = ("the pod is charged for each as a whole device", "weights in _settings, for another rate")
_OF_NODES: Mapping[UnknownAccelerators, tuple[str, str]] = {
    "refuse": ("pods that request it are refused", "unknownAccelerators: meter, which charges them, or pass"),
    "meter": ("pods that request it are charged for whole devices", _METERED[1]),
    "pass": (
        "pods that request it are admitted and not charged",
        "nothing, if it is meant; or unknownAccelerators: meter, which charges them",
    ),
}


def held(pod: Json, setting: UnknownAccelerators) -> Iterator[Violation]:
    """One for each resource by which a container of the pod requests such accelerators."""
    asking = device_containers(containers(pod))
    if not asking:
        return
    request = parse(pod).request
    metered = request is not None and request.dialect == DIALECT
    problem, instead = _METERED if metered else _OF_PODS[setting]
    for each in asking:
        for name in each.resources:
            path = f"{each.container.path}.resources.limits[{name}]"
            yield _found(path, each.container.limits.get(name), name, problem, instead, setting)


def advertised(node: Json, setting: UnknownAccelerators) -> Iterator[Violation]:
    """One for each such resource of which the node has any."""
    capacity = mapping(mapping(node.get("status")).get("capacity"))
    for name in accelerators_in(capacity):
        if integral(capacity[name]) != 0:
            problem, instead = _OF_NODES[setting]
            yield _found(f"status.capacity[{name}]", capacity[name], name, problem, instead, setting)


def _found(
    path: str, amount: object, name: str, problem: str, instead: str, setting: UnknownAccelerators
) -> Violation:
    sentence = f"no dialect reads {described(name)}; {problem}"
    return Violation(RULE, path, shown(amount or ""), sentence, instead, f"unknownAccelerators: {setting}")
