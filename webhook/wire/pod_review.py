"""Parses AdmissionReviews of pods: raw JSON becomes a value or an error sentence. Later code does not check
types again.

The API server sends typed, defaulted objects; the checks are for other clients that can reach the port.
Source: k8s.io/api/admission/v1.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from timekeeper.core.admission.admission import Admission
from timekeeper.core.admission.pods import MalformedError, checked_pod, text_of
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.edge.mended_json import mending

API_VERSION = "admission.k8s.io/v1"
SUBRESOURCES = ("", "ephemeralcontainers", "resize", "status")

_decoded = mending(orjson.loads)


@dataclass(frozen=True, slots=True, kw_only=True)
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
    admission: Admission | None = None  # of a pod that is governed, or observed


def read(body: bytes) -> PodReview:
    """The review in a request's body. Raises MalformedError for anything else."""
    return _review(request_of(body))


def request_of(body: bytes) -> Json:
    """The ``request`` of an AdmissionReview. Raises MalformedError."""
    try:
        whole = _decoded(body)
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
