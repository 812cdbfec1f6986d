"""Nodes with cards and pods on them, as the API server would give them, and snapshots made of these."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import NonGPUPod, Pod, read_non_gpu_pod, read_pod
from scheduler_ext.scoring.policy import BUILT
from scheduler_ext.snapshot.node_info import NodeInfo, with_non_gpu_pods
from scheduler_ext.snapshot.snapshot import EMPTY, Snapshot, nodes_listed, non_gpu_pods_listed, pods_listed
from tests.worlds import card, container, inventory, pod
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import GPURequest, Placement

Json = dict[str, Any]

GIB = 1024


def ours(cards: int, memory_mib: int) -> Json:
    """What our agent advertises."""
    return {"bursar.dev/gpu-percent": str(100 * cards), "bursar.dev/gpu-memory": str(cards * memory_mib)}


def node(
    name: str = "n", *cards: Json, capacity: Json | None = None, annotations: Json | None = None
) -> Json:
    """A node with these cards in its inventory, and without an agent; without any, one card of 16000 MiB."""
    listed = [*cards] or [card(0)]
    listed = [{**each, "uuid": f"{name}-{each['uuid']}"} if name != "n" else each for each in listed]
    advertised = (
        ours(len(listed), sum(each["memory_mib"] for each in listed)) if capacity is None else capacity
    )
    written = {"bursar.dev/inventory": inventory(*listed)}
    metadata = {"name": name, "annotations": {**written, **(annotations or {})}}
    return {"metadata": metadata, "status": {"capacity": advertised, "allocatable": advertised}}


def holders(
    pods: Mapping[str, Sequence[str]] | None = None, *, boot: str = "b1", known: bool = True, closed: str = ""
) -> str:
    """What a node's agent writes of who is there: UID -> UUIDs."""
    there = {uid: list(cards) for uid, cards in (pods or {}).items()}
    return json.dumps({"version": 1, "boot": boot, "known": known, "pods": there, "closed": closed})


def asking(*containers: Json, name: str = "p", init: list[Json] | None = None, **fields: Any) -> Json:
    """A waiting pod that admission governs; its UID is ``uid-<name>``. Keywords beside ``annotations`` go
    into its spec."""
    raw = pod(*containers, init=init, annotations=fields.pop("annotations", None), **fields)
    labels = {"bursar.dev/governed": "true"}
    raw["metadata"] |= {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels}
    return raw


def percent(share: int, name: str = "p", **fields: Any) -> Json:
    """A waiting pod of one container with a share of one card."""
    return asking(container(gpu_percent=str(share)), name=name, **fields)


def mib(memory: int, name: str = "p", **fields: Any) -> Json:
    """A waiting pod of one container with so much of a card's memory."""
    return asking(container(gpu_memory=str(memory)), name=name, **fields)


def in_namespace(namespace: str, raw: Json) -> Json:
    """The pod as one of this namespace."""
    return {**raw, "metadata": {**raw["metadata"], "namespace": namespace}}


def waiting(name: str, share: int = 60, namespace: str = "team-a", **fields: Any) -> Json:
    """A pod that waits for this share of a card, and for our scheduler."""
    return in_namespace(namespace, percent(share, name, schedulerName="bursar-scheduler", **fields))


def bound(raw: Json, where: str, devices: str | None, phase: str = "Running", **status: Any) -> Json:
    """The pod as it is after its Binding; ``devices`` is the annotation, None for a pod bound by others."""
    metadata = {**raw["metadata"], "resourceVersion": "2"}
    if devices is not None:
        metadata["annotations"] = {**metadata.get("annotations", {}), "bursar.dev/devices": devices}
    return {
        **raw,
        "metadata": metadata,
        "spec": {**raw["spec"], "nodeName": where},
        "status": {"phase": phase, **status},
    }


def on(raw: Json, where: str, *uuids: str) -> Json:
    """The pod bound with each container's slices on these cards of 16000 MiB, in order of the containers'
    asks of one card each."""
    request = request_of(raw)
    slices = {}
    for each, uuid in zip(request.asks, uuids, strict=True):
        memory = each.ask.memory_mib or 16 * each.ask.share_milli
        slices[each.container] = [
            {"uuid": uuid, "index": int(uuid.rsplit("-", 1)[1]), "share_milli": each.ask.share_milli}
            | {"memory_mib": memory}
        ]
    return bound(raw, where, json.dumps({"version": 1, "containers": slices}))


def read(raw: Json) -> Pod:
    """The pod's value, which must ask for GPUs."""
    value = read_pod(raw)
    assert value is not None
    return value


def request_of(raw: Json) -> GPURequest:
    """The pod's request, which must be well formed."""
    request = read(raw).request
    assert request is not None
    return request


def rebuilt(nodes: list[Json], pods: list[Json], now_ms: int = 0) -> Snapshot:
    """The snapshot made from objects alone, as at a start."""
    values = [value for value in map(read_pod, pods) if value is not None]
    others = [read_non_gpu_pod(raw) for raw in pods if read_pod(raw) is None]
    return nodes_listed(
        non_gpu_pods_listed(pods_listed(EMPTY, values, now_ms), others), map(read_node, nodes), now_ms
    )


def place(snapshot: Snapshot, raw: Json, where: str, policy: str = "binpack") -> Json | None:
    """The pod bound where it fits on that node, None where it does not."""
    answer = fit(request_of(raw), snapshot.node(where), BUILT[policy])
    return None if isinstance(answer, Refusal) else bound(raw, where, encode_placement(answer))


def cards_of(answer: Placement | Refusal) -> dict[str, list[int]]:
    """Container -> indexes of its cards; empty for a refusal."""
    if isinstance(answer, Refusal):
        return {}
    return {name: [each.index for each in slices] for name, slices in answer.containers}


def with_used(**nodes: list[int]) -> Snapshot:
    """Nodes by name whose cards have these percents free, each used up by a pod of its own."""
    raws, pods = [], []
    for name, shares in nodes.items():
        raws.append(node(name, *(card(at) for at in range(len(shares)))))
        for at, free in enumerate(shares):
            uuid = f"GPU-{at}" if name == "n" else f"{name}-GPU-{at}"
            if free < 100:
                pods.append(on(percent(100 - free, f"{name}-user-{at}"), name, uuid))
    return rebuilt(raws, pods)


def with_cpu(info: NodeInfo, more_milli: int) -> NodeInfo:
    """The node with this much more CPU taken by pods without a GPU; less where it is negative."""
    return with_non_gpu_pods(info, [NonGPUPod("", info.name, more_milli)])
