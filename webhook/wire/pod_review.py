"""Parses AdmissionReviews of pods: raw JSON becomes a value or an error sentence. Later code does not check
types again.

The API server sends typed, defaulted objects; the checks are for other clients that can reach the port.
Source: k8s.io/api/admission/v1.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from timekeeper.core.admission.admission import Admission
from timekeeper.core.admission.pods import MalformedError, checked_pod, text_of
from timekeeper.core.admission.rules.size import MAX_LETTERS, is_crowded
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.edge.mended_json import mending

API_VERSION = "admission.k8s.io/v1"
SUBRESOURCES = ("", "ephemeralcontainers", "resize", "status")

# Brackets and commas of a body. A pod that a cluster stores has 240,000 at most, and a review two pods; what
# is decoded takes up to 120 bytes for each.
MAX_MARKS = 500_000
_FEW_BYTES = 1024 * 1024  # which hold not too many
_OBJECT = b',"object":{'  # an API server writes it after all that an answer needs

_decoded = mending(orjson.loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReview:
    """One request to admit a pod. ``pod`` and ``old`` have the types of a Pod in every field that we read;
    ``user`` and ``groups`` are those that the API server authenticated. ``is_crowded``: it has too many
    parts, and nothing of them is in ``pod`` and ``old``."""

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
    is_crowded: bool = False


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
    if not is_readable(body):
        # whether it is a dry run stands after the object
        return _crowded({**request_of(body.partition(_OBJECT)[0] + b"}}"), "dryRun": True})
    request = request_of(body)
    # each part but for a few has a comma, and counts as its letters and 30 more at most
    may_be_crowded = len(body) + 30 * body.count(b",") > MAX_LETTERS - 300
    if may_be_crowded and any(is_crowded(request.get(each)) for each in ("object", "oldObject")):
        return _crowded(request)
    return _review(request)


def is_readable(body: bytes, most: int = MAX_MARKS) -> bool:
    """Whether a body becomes so few values that there is memory for them."""
    return len(body) <= _FEW_BYTES or sum(map(body.count, (b"{", b"[", b","))) <= most


def request_of(body: bytes) -> Json:
    """The ``request`` of an AdmissionReview. Raises MalformedError."""
    if not is_readable(body):
        raise MalformedError("the body has too many parts to be read")
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


def _crowded(request: Json) -> PodReview:
    metadata = mapping(mapping(request.get("object")).get("metadata"))
    said = {name: metadata[name] for name in ("name", "generateName", "ownerReferences") if name in metadata}
    alone = {**request, "object": {"metadata": said, "spec": {}}, "oldObject": None}
    return replace(_review(alone), is_crowded=True)


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
