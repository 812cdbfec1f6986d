"""What the templates of a gang's first pods tell of those that follow while these run."""

import json
from collections.abc import Iterable
from typing import Any

from timekeeper.core.admission.json_patch import patched
from timekeeper.core.admission.mutation.govern import govern
from timekeeper.core.admission.mutation.whole_cards import in_bursars_words
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.gang_owners import PodSet
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.late_members import late_members
from timekeeper.core.request.request import request_part
from webhook.admission.workloads import as_pod

_OF_SPEC = ("nodeSelector", "tolerations", "overhead", "resources")


def late_text(sets: Iterable[PodSet], policy: AdmissionPolicy, namespace: str) -> str:
    """The text of the annotation for these sets of pods; "" without any, and where it would be too long or
    they are too many."""
    listed = [
        {"count": each.count, "template": _needed(_governed(as_pod(each.template), policy, namespace))}
        for each in sets
    ]
    text = json.dumps(listed, separators=(",", ":"))
    return text if late_members(text) else ""


def _governed(pod: dict[str, Any], policy: AdmissionPolicy, namespace: str) -> Json:
    """As admission will leave it."""
    pod = patched(pod, in_bursars_words(pod, policy.parsed(pod, namespace).request, policy))
    request = policy.parsed(pod, namespace).request
    return pod if request is None else patched(pod, govern(pod, request, "IN_BUDGET", policy))


def _needed(pod: Json) -> dict[str, Any]:
    """The part of a pod that says which nodes and cards it needs."""
    part, spec = request_part(pod), mapping(pod.get("spec"))
    found = {**part["spec"], **{field: spec[field] for field in _OF_SPEC if field in spec}}
    of_nodes = mapping(spec.get("affinity")).get("nodeAffinity")
    if of_nodes:
        found["affinity"] = {"nodeAffinity": of_nodes}
    return {"metadata": part["metadata"], "spec": {name: value for name, value in found.items() if value}}
