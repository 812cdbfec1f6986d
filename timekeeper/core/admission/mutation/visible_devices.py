"""Which cards each container of a governed pod sees: the variables that NVIDIA's container runtime reads.

The Binding writes an annotation for each GPU container, which reads it by the downward API. Every other
container gets ``void``, because images made for CUDA set ``all``. Where a node plugin sets the variable
itself, a variable in the pod would take precedence, so there must be none. New ephemeral containers see
none, and hold none.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from timekeeper.core import names
from timekeeper.core.admission.json_patch import Operation, add, remove, replace
from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.pods import added_ephemeral, sequence_of, variables_of
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.values import GPURequest

Variable = Mapping[str, Any]

VOID: Variable = {"name": VISIBLE_DEVICES, "value": "void"}
_SEES_NOTHING = ("void", "none", "")


def wanted(container: str, request: GPURequest) -> Variable | None:
    """What NVIDIA_VISIBLE_DEVICES must be in the container of this name; None where it must not be set."""
    asking = container in [each.container for each in request.asks]
    if BY_NAME[request.dialect].shown_by_plugin:
        return None if asking else VOID
    return from_annotation(container) if asking or container == names.SIDECAR else VOID


def operations(container: Json, named: Sequence[str], path: str, request: GPURequest) -> list[Operation]:
    """Corrects the variables of one of the user's containers, which have these names; afterwards each exists
    once."""
    present = sequence_of(container.get("env"))
    visible = wanted(container["name"], request)
    if visible is None and any(is_of_config_map(each, request) for each in present):
        return []  # of another system, whose webhook would write it again
    return set_variable(present, named, f"{path}/env", visible)


def without_users_own(
    container: Json, named: Sequence[str], path: str, request: GPURequest
) -> list[Operation]:
    """Of a pod that Bursar does not place no variable is added, and one that its user set shows no card."""
    present = sequence_of(container.get("env"))
    if VISIBLE_DEVICES not in named or any(is_of_config_map(each, request) for each in present):
        return []
    asking = container["name"] in [each.container for each in request.asks]
    return set_variable(present, named, f"{path}/env", None if asking else VOID)


def set_variable(
    present: Sequence[Json], named: Sequence[str], path: str, visible: Variable | None
) -> list[Operation]:
    """Leaves exactly this entry of NVIDIA_VISIBLE_DEVICES, or none: the last of several would take effect.
    ``named``: the names of the present variables."""
    places: list[int] = []
    if VISIBLE_DEVICES in named:
        places = [index for index, name in enumerate(named) if name == VISIBLE_DEVICES]
    surplus = places if visible is None else places[1:]
    changed = [remove(f"{path}/{index}") for index in reversed(surplus)]
    if visible is None:
        return changed
    if not present:
        return [add(path, [visible])]
    if not places:
        return [add(f"{path}/-", visible)]
    if present[places[0]] != visible:
        changed.append(replace(f"{path}/{places[0]}", visible))
    return changed


def is_of_config_map(variable: Variable, request: GPURequest) -> bool:
    """Whether this entry reads the cards from a ConfigMap that the request's system fills at the Binding."""
    names_allowed = BY_NAME[request.dialect].config_maps
    if not names_allowed or variable["name"] != VISIBLE_DEVICES or variable.get("value"):
        return False
    source = mapping(mapping(variable.get("valueFrom")).get("configMapKeyRef"))
    name = source.get("name")
    return (
        source.get("key") == VISIBLE_DEVICES
        and isinstance(name, str)
        and bool(re.fullmatch(names_allowed, name))
    )


def sees(variable: Variable) -> bool:
    """Whether this entry of NVIDIA_VISIBLE_DEVICES could make a card visible: any value but void, none and
    empty, and any value from another source."""
    return variable.get("valueFrom") is not None or (variable.get("value") or "") not in _SEES_NOTHING


def from_annotation(container: str) -> Variable:
    """The variable by which a container reads which cards are assigned to it."""
    return annotated(VISIBLE_DEVICES, names.VISIBLE + container)


def annotated(variable: str, annotation: str) -> Variable:
    """A variable that the kubelet fills from an annotation of the pod each time it starts the container;
    empty where the annotation does not exist."""
    path = f"metadata.annotations['{annotation}']"
    return {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def hide_cards(pod: Json, old: Json) -> tuple[Operation, ...]:
    """Makes no card visible to new containers that do not set the variable: an image made for CUDA would make
    all cards visible."""
    return tuple(
        operation
        for index, container in added_ephemeral(pod, old)
        for named in [variables_of(container)]
        if VISIBLE_DEVICES not in named
        for operation in set_variable(
            sequence_of(container.get("env")), named, f"/spec/ephemeralContainers/{index}/env", VOID
        )
    )


def limit_variables(container: Json, request: GPURequest) -> tuple[Variable, ...]:
    """The variables that the container must have."""
    variables = BY_NAME[request.dialect].variables
    if not variables:
        return ()  # nearly always
    limits = mapping(mapping(container.get("resources")).get("limits"))
    return tuple(
        {"name": variable, "value": str(integral(limits[resource]))}
        for resource, variable in variables.items()
        if resource in limits
    )


def with_limit_variables(container: Json, request: GPURequest) -> list[Json] | None:
    """The container's whole environment with these variables, once each; None where nothing changes."""
    right = limit_variables(container, request)
    if not right:
        return None
    present = sequence_of(container.get("env"))
    named = {each["name"] for each in right}
    if [each for each in present if each["name"] in named] == list(right):
        return None
    return [*(each for each in present if each["name"] not in named), *right]
