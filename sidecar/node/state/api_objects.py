"""What the API server tells of the node and of its pods, read at the door."""

from __future__ import annotations

import json
from urllib.parse import quote

from sidecar.node.state.node_patch import HOLDERS, INVENTORY, OF_OTHERS, OURS
from sidecar.node.state.overuse import shares
from sidecar.node.values import NodeState, PodState
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

DEVICES = "bursar.dev/devices"


@value
class NodePods:
    """The pods, and by the UIDs of those that were given cards how many MiB of each."""

    pods: tuple[PodState, ...]
    shares: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


def node_path(name: str) -> str:
    """The list that holds the one node."""
    return "/api/v1/nodes?fieldSelector=" + quote(f"metadata.name={name}", safe="")


def pods_path(node: str) -> str:
    """The list of the node's pods that have not ended."""
    selector = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    return "/api/v1/pods?fieldSelector=" + quote(selector, safe="")


def read_node(raw: Mapping[str, Any]) -> NodeState:
    """A Node's JSON."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return NodeState(
        str(metadata["uid"]),
        str(metadata["resourceVersion"]),
        str((status.get("nodeInfo") or {}).get("bootID", "")),
        annotations.get(INVENTORY),
        annotations.get(HOLDERS),
        _of_gpus(status.get("capacity") or {}),
        _of_gpus(status.get("allocatable") or {}),
    )


def read_all(raws: Iterable[Mapping[str, Any]]) -> NodePods:
    """The pods of a list, from their metadata."""
    listed = sorted(raws, key=lambda raw: str(raw["metadata"]["uid"]))
    texts = ((raw, (raw["metadata"].get("annotations") or {}).get(DEVICES)) for raw in listed)
    given = ((str(raw["metadata"]["uid"]), shares(text)) for raw, text in texts if text)
    return NodePods(tuple(map(read_pod, listed)), tuple(given))


def read_pod(raw: Mapping[str, Any]) -> PodState:
    """A pod's metadata. One whose cards cannot be read holds none, by this account."""
    metadata = raw["metadata"]
    containers = _containers((metadata.get("annotations") or {}).get(DEVICES))
    return PodState(
        str(metadata["uid"]),
        str(metadata.get("namespace", "")),
        str(metadata["name"]),
        tuple(dict.fromkeys(uuid for _, uuids in containers for uuid in uuids)),
        "deletionTimestamp" in metadata,
        containers,
    )


def _containers(text: str | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    try:
        listed = json.loads(text or "{}").get("containers", {}).items()
        return tuple((str(name), tuple(str(each["uuid"]) for each in slices)) for name, slices in listed)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return ()


def _of_gpus(amounts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted((name, str(text)) for name, text in amounts.items() if name in OURS or OF_OTHERS.match(name))
    )
