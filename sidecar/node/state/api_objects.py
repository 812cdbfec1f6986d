"""Reads the API server's JSON of the node and its pods into values."""

from __future__ import annotations

import json
from urllib.parse import quote

from sidecar.node.state.node_patch import HOLDERS, INVENTORY, STARTUP_TAINT
from sidecar.node.state.overuse import shares
from sidecar.node.values import NodeState, PodState
from timekeeper.edge.mended_json import mended
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

DEVICES = "bursar.dev/devices"
# on nodes of plugins that offer NVIDIA's resource, and give each pod the cards in its annotation; as in
# timekeeper.core.dialects
DESCRIPTIONS = ("hami.io/node-nvidia-register", "KubeDevice/DeviceInfo")


@value
class NodePods:
    """The node's pods that have not ended."""

    pods: tuple[PodState, ...]
    shares: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]  # by pod UID: MiB of each card, by its UUID


def node_path(name: str) -> str:
    """The path of the list with the one node."""
    return "/api/v1/nodes?fieldSelector=" + quote(f"metadata.name={name}", safe="")


def pods_path(node: str) -> str:
    """The path of the list of the node's pods that have not ended."""
    selector = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    return "/api/v1/pods?fieldSelector=" + quote(selector, safe="")


def read_node(raw: Mapping[str, Any]) -> NodeState:
    """Reads a Node's JSON."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return NodeState(
        str(metadata["uid"]),
        str(metadata["resourceVersion"]),
        str((status.get("nodeInfo") or {}).get("bootID", "")),
        annotations.get(INVENTORY),
        annotations.get(HOLDERS),
        _extended(status.get("capacity") or {}),
        _extended(status.get("allocatable") or {}),
        _other_taints((raw.get("spec") or {}).get("taints") or []),
        any(name in annotations for name in DESCRIPTIONS),
    )


def read_all(raws: Iterable[Mapping[str, Any]]) -> NodePods:
    """Reads the pods of a list from their metadata."""
    listed = sorted(raws, key=lambda raw: str(raw["metadata"]["uid"]))
    texts = ((raw, (raw["metadata"].get("annotations") or {}).get(DEVICES)) for raw in listed)
    given = ((str(raw["metadata"]["uid"]), shares(text)) for raw, text in texts if text)
    return NodePods(tuple(map(read_pod, listed)), tuple(given))


def read_pod(raw: Mapping[str, Any]) -> PodState:
    """Reads a pod's metadata. If its annotation is malformed, it holds no cards here."""
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
        listed = json.loads(mended((text or "{}").encode())).get("containers", {}).items()
        return tuple((str(name), tuple(str(each["uuid"]) for each in slices)) for name, slices in listed)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return ()


def _other_taints(taints: list[Any]) -> str | None:
    others = [each for each in taints if each.get("key") != STARTUP_TAINT]
    return None if len(others) == len(taints) else json.dumps(others)


def _extended(amounts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(text)) for name, text in amounts.items() if "/" in name))
