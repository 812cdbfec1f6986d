"""KubeGPU and its successor KubeDevice: requests and placements as JSON in one annotation, of pod and node.

A pod requests whole cards, by number or by name in groups of connected cards. The node side reads
``allocatefrom`` of each container, takes the UUIDs from it and shows the container these cards. Here the
names that a user chose for cards are replaced at the Binding by numbers that mean the same. Sources:
KubeDevice's `kubeinterface`, KubeGPU's scheduler plugin and NVIDIA manager (`docs/dialects.md`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from timekeeper.core.dialects.amounts import MAX_CARDS, NodeFacts, PodFacts
from timekeeper.core.dialects.dialect import (
    Dialect,
    Found,
    PlacedRequest,
    nothing_at_admission,
    nothing_to_read,
)
from timekeeper.core.dialects.kubegpu.device_info import (
    MIB,
    DeviceInfoError,
    DeviceInfoNames,
    Wanted,
    groups_of,
    number_of,
    read_wanted,
)
from timekeeper.core.dialects.percent import MODEL_LABEL, UNKNOWN_MEMORY_MIB
from timekeeper.core.quantity import integral
from timekeeper.core.values import CLOSEST, WHOLE_MILLI, Ask, Card, ContainerAsk, GPURequest
from timekeeper.core.violation import Violation


@dataclass(frozen=True, slots=True)
class _WantedPod:
    """What the annotation and the limits of a pod request: nothing where each count is zero."""

    wanted: Mapping[str, Wanted]  # by container; those with cards
    generate: int  # 0: cards may be anywhere; 1: as close to each other as possible


def _read(names: DeviceInfoNames, pod: PodFacts) -> tuple[ContainerAsk, ...] | tuple[Violation, ...]:
    try:
        wanted = _pod(names, pod).wanted
    except DeviceInfoError as error:
        return (error.violation,)
    return tuple(
        ContainerAsk(
            each.name, each.init, Ask(wanted[each.name].cards, WHOLE_MILLI, 0, sets=wanted[each.name].sets)
        )
        for each in pod.containers
        if each.name in wanted
    )


def _constrain(
    names: DeviceInfoNames, request: GPURequest, pod: PodFacts
) -> GPURequest | tuple[Violation, ...]:
    if not request.asks:
        return request  # `_read` has said why
    try:
        generate = _pod(names, pod).generate
    except DeviceInfoError as error:
        return (error.violation,)
    free = any(each.ask.devices > 1 and not each.ask.grouped for each in request.asks)
    closest = CLOSEST if generate and free else ""
    return replace(request, topology=request.topology or closest)


def _pod(names: DeviceInfoNames, pod: PodFacts) -> _WantedPod:
    """Raises DeviceInfoError."""
    info = names.decode(pod.annotations.get(names.pod))
    generates = [names.generate(info.get("requests"), f"{names.path}.requests")]
    wanted: dict[str, Wanted] = {}
    zeros = False  # an amount is given; if no card is requested, all of them are zero
    for field, init in (("initcontainer", True), ("runningcontainer", False)):
        given = names.objects(info.get(field), f"{names.path}.{field}")
        containers = {each.name: each for each in pod.containers if names.is_init(each) is init}
        unknown = next((name for name in given if name not in containers), None)
        if unknown is not None:
            problem = "no container of this name"
            raise names.error(f".{field}", unknown, problem, ", ".join(containers) or "none")
        for name, container in containers.items():
            path = f"{names.path}.{field}[{name}].requests"
            requests = names.objects(given.get(name), f"{names.path}.{field}[{name}]").get("requests")
            generates.append(None if names.of_pod else names.generate(requests, path))
            limit = integral(container.limits.get(names.count)) or 0
            each = read_wanted(names, requests, path, limit)
            zeros = zeros or not names.objects(requests, path).keys() <= set(names.generates)
            if each.cards:
                wanted[name] = each
    total = sum(each.cards for each in wanted.values())
    if total > MAX_CARDS or not (total or zeros):
        problem = "more cards than any node has" if total else "it requests no GPU"
        raise names.error("", str(total), problem, f"1 to {MAX_CARDS} cards")
    return _WantedPod(wanted, next((each for each in generates if each is not None), names.absent))


def _cards(names: DeviceInfoNames, node: NodeFacts) -> tuple[Card, ...]:
    """The cards that the node side advertises: with links within a group of the lower level, and a NUMA node
    for each group of the upper level. Raises DeviceInfoError."""
    described = names.decode(node.annotations.get(names.node))
    amounts = names.objects(described.get("allocatable"), "")
    memory = {each.uuid: amounts[name] for name in amounts if (each := names.place(name, "memory"))}
    there = {each.uuid: each for name in amounts if (each := names.place(name, "cards"))}
    places = sorted(there.values(), key=lambda each: (number_of(each.pair), each.uuid))[:MAX_CARDS]
    sockets = list(dict.fromkeys(each.socket for each in places))
    model = node.labels.get(MODEL_LABEL, "GPU")
    return tuple(
        Card(
            each.uuid,
            index,
            model,
            max(0, integral(memory.get(each.uuid)) or 0) // MIB or UNKNOWN_MEMORY_MIB,
            numa=sockets.index(each.socket),
            links=tuple(
                other.uuid
                for other in places
                if (other.socket, other.pair) == (each.socket, each.pair) and other is not each
            ),
        )
        for index, each in enumerate(places)
    )


def _found(names: DeviceInfoNames, pod: PodFacts, _request: GPURequest) -> Found:
    """By UUID, as ``allocatefrom`` names them."""
    if names.pod not in pod.annotations:
        return {}
    try:
        info = names.decode(pod.annotations[names.pod])
        return {
            name: names.allocated(each)
            for field in ("initcontainer", "runningcontainer")
            for name, each in names.objects(info.get(field), names.path).items()
        }
    except DeviceInfoError:
        return {}


def _at_binding(names: DeviceInfoNames, placed: PlacedRequest) -> dict[str, str]:
    groups = groups_of(placed.cards)
    init = {each.container for each in placed.request.asks if each.container in placed.init_containers}
    parts: dict[str, dict[str, Any]] = {"initcontainer": {}, "runningcontainer": {}}
    sets = {each.container: each.ask.sets for each in placed.request.asks}
    for container, slices in placed.placement.containers:
        cards = [(*groups[each.uuid], each.uuid) for each in slices]
        written = names.container(cards, sets[container])
        parts["initcontainer" if container in init else "runningcontainer"][container] = written
    info = {
        "nodename": placed.node,
        "requests": {names.generates[0]: int(placed.request.topology == CLOSEST)},
        **{field: part for field, part in parts.items() if part},
    }
    return {names.pod: json.dumps(info, separators=(",", ":"))}


def _dialect(
    name: str, names: DeviceInfoNames, shared: tuple[str, ...] = (), serves: tuple[str, ...] = ()
) -> Dialect:
    return Dialect(
        name=name,
        resources=(),
        examples={},
        read=nothing_to_read,
        annotations=(names.pod,),
        read_pod=partial(_read, names),
        constrain=partial(_constrain, names),
        node_annotation=names.node,
        cards=partial(_cards, names),
        shared=shared,
        serves=serves,
        on_nodes_of=("bursar",),
        at_admission=nothing_at_admission,
        at_binding=partial(_at_binding, names),
        found=partial(_found, names),
    )


DIALECTS = (
    _dialect(
        "kubedevice",
        DeviceInfoNames(
            pod="KubeDevice/DeviceInfo",
            node="KubeDevice/DeviceInfo",
            prefix="resource/group",
            counts=("nvidia.com/gpu",),
            generates=("gpu/gpu-generate-topology",),
            absent=1,
            of_pod=False,
        ),
        shared=("nvidia.com/gpu",),
        serves=("nvidia",),
    ),
    _dialect(
        "kubegpu",
        DeviceInfoNames(
            pod="pod.alpha/DeviceInformation",
            node="node.alpha/DeviceInformation",
            prefix="alpha/grpresource",
            counts=("alpha.gpu/numgpu", "alpha.kubernetes.io/nvidia-gpu"),
            generates=("alpha.gpu/gpu-generate-topology", "gpu/gpu-generate-topology"),
            absent=0,
            of_pod=True,
        ),
    ),
)
