"""Parses AdmissionReviews of pods: raw JSON becomes a value or an error sentence. Later code does not check
types again.

The API server sends typed, defaulted objects; the checks are for other clients that can reach the port.
Source: k8s.io/api/admission/v1.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.values import GPURequest

API_VERSION = "admission.k8s.io/v1"
SUBRESOURCES = ("", "ephemeralcontainers", "resize", "status")

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")


class MalformedError(ValueError):
    """The body is not a valid AdmissionReview; the text gives the reason and becomes the body of the 400."""


@dataclass(frozen=True, slots=True)
class PodReview:
    """One request to admit a pod. ``pod`` and ``old`` have the types of a Pod in every field that we read;
    ``user`` and ``groups`` are those that the API server authenticated."""

    uid: str
    operation: str
    subresource: str
    namespace: str
    name: str
    dry_run: bool
    pod: Json
    old: Json
    user: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """The answer to a review."""

    verdict: str  # one word for logs and metrics
    refusal: str = ""  # the text of a refusal; empty admits
    operations: tuple[Mapping[str, Any], ...] = ()  # an RFC 6902 patch
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)  # audit annotations
    rules: tuple[tuple[str, str], ...] = ()  # violated rules, each with its effective mode
    request: GPURequest | None = None  # the pod's request where the pod is governed


def read(body: bytes) -> PodReview:
    """The review in a request's body. Raises MalformedError for anything else."""
    return _review(request_of(body))


def request_of(body: bytes) -> Json:
    """The ``request`` of an AdmissionReview. Raises MalformedError."""
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the body is not JSON: {error}") from error
    if not isinstance(whole, dict) or whole.get("kind") != "AdmissionReview":
        raise MalformedError("the body is not an AdmissionReview")
    if whole.get("apiVersion") != API_VERSION:
        raise MalformedError(f"apiVersion must be {API_VERSION}")
    request = whole.get("request")
    if not isinstance(request, dict):
        raise MalformedError("request: must be an object")
    return request


def encode(uid: str, answer: AdmissionAnswer) -> bytes:
    """The AdmissionReview that answers the request ``uid``."""
    response: dict[str, Any] = {"uid": uid, "allowed": not answer.refusal}
    if answer.refusal:
        # without a code the API server answers 400; after 429 kubectl would retry silently for minutes
        response["status"] = {"code": 403, "reason": "Forbidden", "message": answer.refusal}
    elif answer.operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(answer.operations)).decode()
    if answer.warnings:
        response["warnings"] = answer.warnings
    if answer.audit:
        response["auditAnnotations"] = answer.audit
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def _review(request: Json) -> PodReview:
    uid = text_of(request, "uid")
    if not uid:
        raise MalformedError("request.uid: must not be empty")
    if mapping(request.get("resource")).get("resource") != "pods":
        raise MalformedError("request.resource: only pods are reviewed here")
    subresource = text_of(request, "subResource")
    if subresource not in SUBRESOURCES:
        raise MalformedError(
            "request.subResource: only " + ", ".join(SUBRESOURCES[1:]) + " are reviewed here"
        )
    operation = text_of(request, "operation")
    user = mapping(request.get("userInfo"))
    return PodReview(
        uid=uid,
        operation=operation,
        subresource=subresource,
        namespace=text_of(request, "namespace"),
        name=text_of(request, "name"),
        dry_run=request.get("dryRun") is True,
        pod={} if operation == "DELETE" else checked_pod(request.get("object"), "request.object"),
        old=checked_pod(request["oldObject"], "request.oldObject")
        if request.get("oldObject") is not None
        else {},
        user=text_of(user, "username"),
        groups=tuple(each for each in sequence(user.get("groups")) if isinstance(each, str)),
    )


def checked_pod(raw: object, path: str) -> Json:
    """A pod whose metadata, containers, environments and volumes have the types that the API gives them.
    Raises MalformedError, with the path from ``path`` on."""
    pod = _object(raw, path)
    metadata = _object(pod.get("metadata"), f"{path}.metadata")
    for name in ("annotations", "labels"):
        _texts(metadata.get(name), f"{path}.metadata.{name}")
    spec = _object(pod.get("spec"), f"{path}.spec")
    for name in CONTAINER_LISTS:
        for index, container in enumerate(_named(spec.get(name), path, f".spec.{name}")):
            _container(container, f"{path}.spec.{name}[{index}]")
    for name in ("volumes", "schedulingGates"):
        _named(spec.get(name), path, f".spec.{name}")
    for name in ("priorityClassName", "schedulerName", "runtimeClassName", "nodeName"):
        text_of(spec, name)
    for name in ("priority", "terminationGracePeriodSeconds", "activeDeadlineSeconds"):
        _whole(spec.get(name), f"{path}.spec.{name}")
    return pod


def _container(container: Json, path: str) -> None:
    for each in _named(container.get("env"), path, ".env"):
        value = each.get("value")
        if value is not None and not isinstance(value, str):
            index = container["env"].index(each)
            raise MalformedError(f"{path}.env[{index}].value: must be a string")
    _named(container.get("volumeMounts"), path, ".volumeMounts")
    resources = container.get("resources")
    if resources is not None:
        for name in ("limits", "requests"):
            amounts = _object(resources, f"{path}.resources").get(name)
            if amounts is not None:
                _object(amounts, f"{path}.resources.{name}")


def _named(raw: object, path: str, member: str) -> Sequence[Json]:
    """An array of named objects, empty where it is absent. Error paths are formatted only where needed."""
    if raw is None:
        return ()
    if not isinstance(raw, list):
        raise MalformedError(f"{path}{member}: must be an array")
    for each in raw:
        if not isinstance(each, dict):
            raise MalformedError(f"{path}{member}[{raw.index(each)}]: must be an object")
        if not isinstance(each.get("name"), str):
            raise MalformedError(f"{path}{member}[{raw.index(each)}].name: must be a string")
    return raw


def _object(raw: object, path: str) -> Json:
    if not isinstance(raw, dict):
        raise MalformedError(f"{path}: must be an object")
    return raw


def text_of(raw: Json, name: str) -> str:
    """A field's text, empty where it is absent. Raises MalformedError where it is not text."""
    value = raw.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedError(f"{name}: must be a string")
    return value


def _texts(raw: object, path: str) -> None:
    if raw is None:
        return
    for key, value in _object(raw, path).items():
        if not isinstance(value, str):
            raise MalformedError(f"{path}[{key}]: must be a string")


def _whole(raw: object, path: str) -> None:
    if raw is not None and (not isinstance(raw, int) or isinstance(raw, bool)):
        raise MalformedError(f"{path}: must be a whole number")


def annotations_of(pod: Json) -> Json:
    """A checked pod's annotations, empty if it has none."""
    return pod["metadata"].get("annotations") or {}


def labels_of(pod: Json) -> Json:
    """A checked pod's labels, empty if it has none."""
    return pod["metadata"].get("labels") or {}


def variables_of(container: Json) -> list[str]:
    """The names of a checked container's variables."""
    return [each["name"] for each in sequence_of(container.get("env"))]


def sequence_of(raw: object) -> Sequence[Json]:
    """A checked list of the pod's spec, empty where it is absent."""
    return raw if isinstance(raw, list) else []


def added_ephemeral(pod: Json, old: Json) -> Iterator[tuple[int, Json]]:
    """The ephemeral containers that are not in the old pod, each with its index."""
    before = {each["name"] for each in sequence_of(old["spec"].get("ephemeralContainers"))} if old else set()
    for index, container in enumerate(sequence_of(pod["spec"].get("ephemeralContainers"))):
        if container["name"] not in before:
            yield index, container
