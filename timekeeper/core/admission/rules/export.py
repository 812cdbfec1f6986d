"""The export of a bound pod, created again: `kubectl replace --force` of what `get -o yaml` printed, or a
restored backup. What admission, scheduler, node plugins and timekeeper had written of its former life goes,
so that it is governed as a pod of its template is. A forged mark wins nothing: what it says goes too."""

from timekeeper.core import names
from timekeeper.core.admission.json_patch import Operation, add, remove
from timekeeper.core.admission.mutation.sidecar import VOLUME_NAMES, is_our_volume, is_ours
from timekeeper.core.admission.pods import annotations_of, labels_of, sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.forged import is_only_ours, is_written_label
from timekeeper.core.json_values import Json


def is_export(pod: Json) -> bool:
    """Whether this new pod was governed and bound once, as its marks say."""
    annotations = annotations_of(pod)
    was_bound = names.DEVICES in annotations or (names.REQUEST in annotations and pod["spec"].get("nodeName"))
    return bool(was_bound) and labels_of(pod).get(names.GOVERNED) == "true"


def as_written(pod: Json, policy: AdmissionPolicy) -> list[Operation]:
    """What makes of an export the pod that its user wrote, but for what governing would write again."""
    metadata, spec = pod["metadata"], pod["spec"]
    kept: Json = {
        "/metadata/annotations": {
            name: value for name, value in annotations_of(pod).items() if not is_only_ours(name)
        },
        "/metadata/labels": {
            name: value
            for name, value in labels_of(pod).items()
            if name != names.GOVERNED and not is_written_label(name)
        },
        "/spec/initContainers": [
            container
            for container in sequence_of(spec.get("initContainers"))
            if container["name"] != names.SIDECAR or not is_ours(container)
        ],
        "/spec/volumes": [
            volume
            for volume in sequence_of(spec.get("volumes"))
            if volume["name"] not in VOLUME_NAMES or not is_our_volume(volume)
        ],
        "/spec/schedulingGates": [
            gate for gate in sequence_of(spec.get("schedulingGates")) if gate["name"] not in names.GATES
        ],
    }
    gone = ["nodeName"]
    if spec.get("priorityClassName") in (policy.in_budget.name, policy.over_budget.name):
        gone += ["priorityClassName", "priority", "preemptionPolicy"]
    operations = [remove(f"/spec/{field}") for field in gone if field in spec]
    for path, rest in kept.items():
        owner = metadata if path.startswith("/metadata/") else spec
        field = path.rpartition("/")[2]
        if field in owner and owner[field] != rest:
            operations.append(add(path, rest) if rest else remove(path))
    return operations
