"""What objects alone say of cards: an oracle that imports nothing of ours.

Cards are named by UUID, whichever node they are in, and a pod takes of them what its own annotation says,
while it is bound and has not ended.
"""

import json
from collections.abc import Iterable

from tests.worlds import Json

Taken = dict[str, tuple[int, int]]  # thousandths and MiB, by UUID

ENDED = ("Succeeded", "Failed")


def slices(pod: Json) -> list[Json]:
    """The slices that a pod's annotation names; none where it has none or it says nothing."""
    text = pod["metadata"].get("annotations", {}).get("bursar.dev/devices", "")
    try:
        containers = json.loads(text)["containers"]
        return [each for part in containers.values() for each in part]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def holds(pod: Json) -> bool:
    """Whether it is bound, and not ended or still running."""
    status = pod.get("status", {})
    if not pod["spec"].get("nodeName"):
        return False
    states = [each.get("state", {}) for each in status.get("containerStatuses", [])]
    return status.get("phase") not in ENDED or any("running" in state for state in states)


def taken(pods: Iterable[Json]) -> Taken:
    """What these pods take of each card."""
    total: Taken = {}
    for pod in pods:
        for each in slices(pod):
            share, memory = total.get(each["uuid"], (0, 0))
            total[each["uuid"]] = share + each["share_milli"], memory + each["memory_mib"]
    return total


def overcommitted(total: Taken, memory_mib: dict[str, int]) -> Taken:
    """The cards of which more is taken than there is, with what is."""
    return {
        uuid: use for uuid, use in total.items() if use[0] > 1000 or use[1] > memory_mib.get(uuid, use[1])
    }


def inventory(node: Json) -> dict[str, int]:
    """The node's cards and their memory, MiB; empty where that cannot be read."""
    text = node["metadata"].get("annotations", {}).get("bursar.dev/inventory", "")
    try:
        return {card["uuid"]: card["memory_mib"] for card in json.loads(text)["cards"]}
    except (ValueError, KeyError, TypeError):
        return {}
