"""Small worlds for the webhook: pods as the API server hands them on, reviews, policies, tables of
standings."""

import base64
import copy
import json
from dataclasses import replace
from typing import Any

import jsonpatch
import orjson

from tests.worlds import Json, container, pod
from timekeeper.core.admission.admission import admission_of
from timekeeper.core.admission.mutation import govern
from timekeeper.core.admission.policy import (
    AdmissionPolicy,
    PriorityClass,
    Sidecar,
    SidecarImages,
    Standing,
    without_placement,
)
from timekeeper.core.admission.rules.pod_rules import pod_violations
from timekeeper.core.request.request import parse_new
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation
from timekeeper.core.wire import HeldFor, StandingWord
from webhook.admission.pods import mutate
from webhook.wire.object_review import ObjectReview
from webhook.wire.object_review import read as read_object_review
from webhook.wire.pod_review import API_VERSION, AdmissionAnswer, PodReview
from webhook.wire.pod_review import read as read_pod_review

SIDECAR = Sidecar("example/sidecar:1", "https://timekeeper.example", "-----BEGIN CERTIFICATE-----\n...")
IN_BUDGET = PriorityClass("gpu-default-priority", 0)
OVER_BUDGET = PriorityClass("gpu-lower-priority", -5)

POLICY = AdmissionPolicy(
    known=True,
    mode="enforce",
    scheduler_name="bursar-scheduler",
    in_budget=IN_BUDGET,
    over_budget=OVER_BUDGET,
    unknown_standing="inBudget",
    max_grace_s=600,
    runtime_class="",
    sidecar=SIDECAR,
    sidecar_images=SidecarImages(SIDECAR.image, ("mirror.example/",)),
)
OURS = (
    *("NVIDIA_VISIBLE_DEVICES", "BURSAR_CA", "BURSAR_TIMEKEEPER_URL", "BURSAR_SPOOL", "BURSAR_TOKEN_FILE"),
    "BURSAR_CARDS",
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
)

PAID = Standing("IN_BUDGET")
OBSERVING = replace(POLICY, mode="observe")
WITHOUT_SIDECAR = replace(POLICY, sidecar=None)
UNPLACED = without_placement(replace(POLICY, places=False))
# the selector of the reviewed namespaces: all but those of the system and the exempt ones
GOVERNED_NAMESPACES = {
    "matchExpressions": [
        {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", "gpu-operator", "bursar-system", "bursar-node"],
        },
        {"key": "bursar.dev/exempt", "operator": "NotIn", "values": ["true"]},
    ]
}


def violations_of(pod: Json, policy: AdmissionPolicy) -> tuple[Violation, ...]:
    """Everything wrong with the pod."""
    return pod_violations(pod, parse_new(pod, policy.unknown_accelerators), policy)


def half(name: str = "main", **fields: object) -> Json:
    """A container that asks for half a card; further keywords are fields of the container."""
    return container(name, gpu_percent="50") | fields


def plain(name: str = "web", **fields: object) -> Json:
    """A container that asks for no card."""
    return {"name": name, "image": "registry.example/web:1", "resources": {}} | fields


def admitted(*containers: Json, **fields: Any) -> Json:
    """A pod as a webhook sees it: defaults are filled in and no class was asked."""
    defaults: dict[str, Any] = {
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
    }
    raw = pod(*containers, **(defaults | fields))
    return dict(json.loads(json.dumps(raw)))  # as it arrives: nothing in it is shared


def with_class(raw: Json, name: str, value: int) -> Json:
    """The pod after the API server has resolved a priority class that the user named."""
    changed = copy.deepcopy(raw)
    changed["spec"] |= {"priorityClassName": name, "priority": value}
    return changed


def with_annotations(raw: Json, annotations: Json) -> Json:
    """The pod with these annotations too."""
    changed = copy.deepcopy(raw)
    changed["metadata"].setdefault("annotations", {}).update(annotations)
    return changed


def operations(
    raw: Json, word: StandingWord = "IN_BUDGET", policy: AdmissionPolicy = POLICY, hold: HeldFor = ""
) -> list[Any]:
    """What govern writes for a pod that asks for a GPU."""
    parsed = parse_new(raw, policy.unknown_accelerators, named=policy.accelerators)
    assert parsed.request is not None, parsed.violations
    request = parsed.request
    return govern.govern(raw, admission_of(raw, request, Standing(word), policy, hold))


def patched(raw: Json, changes: list[Any]) -> Json:
    """The pod after the patch, as an API server would apply it."""
    result: Json = jsonpatch.apply_patch(raw, json.loads(json.dumps(changes)))
    return result


def governed(
    raw: Json, word: StandingWord = "IN_BUDGET", policy: AdmissionPolicy = POLICY, hold: HeldFor = ""
) -> Json:
    """The governed pod, with the numbers of its class resolved again as the API server does."""
    after = patched(raw, operations(raw, word, policy, hold))
    values = {each.name: each.value for each in (policy.in_budget, policy.over_budget)}
    spec = after["spec"]
    if spec["priorityClassName"] in values:
        spec["priority"] = values[spec["priorityClassName"]]
        spec["preemptionPolicy"] = "Never" if spec["priority"] else "PreemptLowerPriority"
    return after


def sidecar_of(raw: Json) -> Json:
    """The injected container; there is exactly one."""
    (found,) = (each for each in raw["spec"].get("initContainers", []) if each["name"] == "bursar-sidecar")
    assert isinstance(found, dict)
    return found


def env(container: Json) -> dict[str, Any]:
    """A container's variables by name: the value, or the field that it is read from; ours are set once."""
    found: dict[str, Any] = {}
    for each in container.get("env", []):
        assert each["name"] not in found or each["name"] not in OURS, f"{each['name']} is set twice"
        found[each["name"]] = each.get(
            "value", each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        )
    return found


def review_of(raw: Json | None, **request: Any) -> Json:
    """An AdmissionReview of the creation of a pod; keywords replace fields of the request."""
    return {
        "apiVersion": API_VERSION,
        "kind": "AdmissionReview",
        "request": {
            "uid": "uid-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team-a",
            "operation": "CREATE",
            "userInfo": {"username": "someone", "groups": ["system:authenticated"]},
            "object": raw,
            "oldObject": None,
            "dryRun": False,
        }
        | request,
    }


def review(raw: Json | None, **request: Any) -> PodReview:
    """The review of a pod's creation, read as it comes in; keywords replace fields of the request."""
    return read_pod_review(orjson.dumps(review_of(raw, **request)))


def object_review(written: Json | None, old: Json | None = None, **request: Any) -> ObjectReview:
    """The review of an object's creation, or with an old one of its update, read as it comes in."""
    of = written or old or {}
    group, _, version = str(of["apiVersion"]).rpartition("/")
    fields = {
        "kind": {"group": group, "version": version, "kind": of["kind"]},
        "operation": "UPDATE" if old else "CREATE",
        "oldObject": old,
    }
    return read_object_review(orjson.dumps(review_of(written, **(fields | request))))


def mutated(
    raw: Json, standing: Standing = PAID, policy: AdmissionPolicy = POLICY, **request: Any
) -> AdmissionAnswer:
    """The answer of /mutate to a pod of a namespace with this standing."""
    return mutate(review(raw, **request), lambda _: standing, policy)


def requested(answer: AdmissionAnswer) -> GPURequest | None:
    """What a governed or observed pod asks for."""
    return answer.admission.request if answer.admission is not None else None


def counted(answer: AdmissionAnswer) -> GPURequest | None:
    """What the call counts of the budget."""
    return answer.admission.counted if answer.admission is not None else None


def patch_of(response: Json) -> list[Any]:
    """The operations in an answer's response; empty where it carries none."""
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    operations: list[Any] = json.loads(base64.b64decode(response["patch"]))
    return operations
