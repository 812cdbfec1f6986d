"""Exports of bound pods, as `kubectl get -o yaml` prints them, and pods with marks of others."""

import copy
from collections.abc import Iterable

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


Mark = tuple[str, str, object]  # where it stands, its name, what it says


def marks_of(stored: Json) -> list[Mark]:
    """All that only Bursar, schedulers and node plugins have written into a pod of a life, one by one."""
    metadata, spec = stored["metadata"], stored["spec"]
    annotations = {**metadata["annotations"], **OF_ITS_LIFE}
    found: list[Mark] = [
        ("annotations", name, text)
        for name, text in annotations.items()
        if name.startswith(("bursar.dev/", "visible-devices.", "mps-threads.")) and name not in THEIRS
    ]
    found += [("labels", "bursar.dev/governed", "true")]
    found += [("schedulingGates", gate["name"], gate) for gate in spec.get("schedulingGates", ())]
    for field in ("initContainers", "volumes"):
        found += [
            (field, part["name"], part) for part in spec.get(field, ()) if part["name"].startswith("bursar-")
        ]
    return found


THEIRS = ("bursar.dev/gang", "bursar.dev/gang-size", "bursar.dev/host")  # a user's, and of no release


def with_marks(raw: Json, marks: Iterable[Mark]) -> Json:
    """The pod with these marks, where it has none of their names."""
    changed: Json = copy.deepcopy(raw)
    for place, name, said in marks:
        if place in ("annotations", "labels"):
            changed["metadata"].setdefault(place, {}).setdefault(name, said)
        elif name not in [part["name"] for part in changed["spec"].setdefault(place, [])]:
            changed["spec"][place].insert(0, copy.deepcopy(said))
    return changed


def but_for_the_sidecars_amounts(pod: Json) -> Json:
    """The pod without empty fields, its volumes by name, and the sidecar without its amounts, which follow
    from the containers that were there when it was injected."""
    changed = without_empty(copy.deepcopy(pod))
    if "volumes" in changed["spec"]:
        changed["spec"]["volumes"].sort(key=lambda volume: str(volume["name"]))
    for container in changed["spec"].get("initContainers", ()):
        if container["name"] == "bursar-sidecar":
            container.pop("resources", None)
    return changed
