"""Exports of bound pods, as `kubectl get -o yaml` prints them."""

import copy

from tests.worlds import Json

# what Binding, node plugins, timekeeper and extender write on a pod of its life
OF_ITS_LIFE = {
    "bursar.dev/devices": "main:GPU-0/50/8192",
    "visible-devices.bursar.dev/main": "GPU-0",
    "mps-threads.bursar.dev/main": "50",
    "bursar.dev/host": "4/16",
    "bursar.dev/gang-started": "1764374400000",
    "bursar.dev/evict-after": "2026-11-29T00:00:00Z",
    "bursar.dev/delete-after": "2026-11-29T00:10:00Z",
    "bursar.dev/idle-until": "2026-11-29T00:00:00Z",
    "bursar.dev/reclaimable": "idle",
    "tencent.com/gpu-assigned": "true",
}


def exported_of(governed: Json, **annotations: str) -> Json:
    """The governed pod once a node has it."""
    raw: Json = copy.deepcopy(governed)
    raw["metadata"]["annotations"] |= OF_ITS_LIFE | annotations
    raw["spec"]["nodeName"] = "n"
    return raw


_RESOLVED = ("priority", "preemptionPolicy")


def without_empty(pod: Json) -> Json:
    """The pod without empty lists and maps, and the class's numbers, which the API server fills in."""
    return {
        part: {
            field: value
            for field, value in pod[part].items()
            if value not in ({}, []) and field not in _RESOLVED
        }
        if part in ("metadata", "spec")
        else pod[part]
        for part in pod
    }
