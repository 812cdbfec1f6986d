"""What filter would answer, without any effect: for simulators and autoscalers.

Nodes may be templates that the cluster does not have: then their cards are read from the object, without
pods. A node in the cache is taken as it is there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_ext.model.node import read_node
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, node_info_of, without_pod
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.fit_cache import FilterResult, FitCache, FitKey
from scheduler_ext.verbs.protocol import ExtenderArgs
from timekeeper.core import names
from timekeeper.core.dialects import nvidia, tencent
from timekeeper.core.dialects.amounts import MAX_CARDS
from timekeeper.core.dialects.percent import MEMORY_LABEL, MODEL_LABEL
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.quantity import integral

# a template has no pods, whatever annotations were copied from a real node
NO_PODS = '{"version":1,"boot":"","known":true,"pods":{},"closed":""}'

_MAX_MIB = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DryRun:
    """The nodes as filter would sort them. ``assumed``: assumptions about a template's cards, by node."""

    sorted_nodes: FilterResult
    assumed: Mapping[str, str]


def dry_run(asked: ExtenderArgs, about: FitKey, uid: str, snapshot: Snapshot) -> DryRun:
    """These nodes' answers for the pod with this UID, ignoring cards that it holds itself."""
    nodes: dict[str, NodeInfo] = {}
    assumed: dict[str, str] = {}
    for name in asked.names:
        known = snapshot.nodes.get(name)
        if known is not None and known.node_object is not None:
            nodes[name] = without_pod(known, uid)
        elif asked.nodes is not None:
            template, sentence = _complete(asked.nodes[name])
            nodes[name] = node_info_of(name, read_node(template), {})
            if sentence:
                assumed[name] = sentence
    return DryRun(FitCache().partition(about, Map(nodes), asked.names), assumed)


def _complete(raw: Json) -> tuple[Json, str]:
    """The Node object with an inventory, and the assumptions made for it, "" if it had one."""
    annotations = {**annotations_of(raw), names.HOLDERS: NO_PODS}
    metadata = {**mapping(raw.get("metadata")), "annotations": annotations}
    raw = {**raw, "metadata": metadata}
    status = mapping(raw.get("status"))
    count, memory = _advertised(mapping(status.get("capacity")))
    if names.INVENTORY in annotations or not count:
        return raw, ""
    labels = mapping(metadata.get("labels"))
    model = str(labels.get(MODEL_LABEL, ""))
    labelled_mib = integral(labels.get(MEMORY_LABEL)) or 0
    each = min(max(memory // count or labelled_mib, 1), _MAX_MIB)
    cards = [
        {"uuid": f"GPU-template-{at}", "index": at, "model": model, "memory_mib": each, "healthy": True}
        for at in range(count)
    ]
    inventory = json.dumps({"version": 1, "cards": cards})
    metadata = {**metadata, "annotations": {**annotations, names.INVENTORY: inventory}}
    return {**raw, "metadata": metadata}, _sentence(count, each, model)


def _advertised(capacity: Json) -> tuple[int, int]:
    """The number of cards in the capacity, and the MiB of all of them if it says so."""
    for resource, card, memory, unit in (
        (names.GPU_PERCENT, 100, names.GPU_MEMORY, 1),
        (tencent.CORE, 100, tencent.MEMORY, tencent.UNIT_MIB),
        (nvidia.GPU, 1, "", 1),
    ):
        count = max(0, integral(capacity.get(resource)) or 0) // card
        if count:
            return min(count, MAX_CARDS), max(0, integral(capacity.get(memory)) or 0) * unit
    return 0, 0


def _sentence(count: int, each_mib: int, model: str) -> str:
    memory = f"of {each_mib} MiB" if each_mib > 1 else "of unknown memory"
    named = f"model {model} by its label" if model else "model not known"
    return (
        f"no inventory: {count} equal cards {memory} assumed, {named}, links and NUMA nodes not known"
        ", no pods on them"
    )
