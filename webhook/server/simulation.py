"""``POST /simulate``: what /mutate would answer to new pods, without an effect: no estimate of what was
admitted, no Event, no decision, and no count of a review."""

import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import orjson

from timekeeper.core.admission.json_patch import patched
from timekeeper.core.admission.pods import MalformedError
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.runtime.http.service import HttpAnswer, PostCall, plain_text
from webhook.admission.gangs import of_owner
from webhook.log import Log
from webhook.server.reviewer import NotReadyError, Reviewer
from webhook.wire import defaulting, object_review
from webhook.wire.pod_review import MAX_MARKS, PodReview, is_readable, read

PATH = "/simulate"


def simulation_call(admission: Reviewer, log: Log) -> PostCall:
    """The call. ``{"reviews": [AdmissionReview...]}`` of the pods of one manifest, and perhaps ``claims``,
    the claims and templates that are supposed, gives ``{"answers": [...]}``, each with the pod as it would be
    stored. The pods are admitted one after another, as in a worker that has admitted none before. They need
    not have what an API server sets before it calls webhooks. ``{"owner": AdmissionReview}`` of an owner of
    pods gives the answer of /gangs. A review must have ``dryRun``."""

    def call(body: bytes) -> HttpAnswer:
        began = time.perf_counter()
        try:
            whole = _object(body)
            if "owner" in whole:
                return _of_owner(admission, whole["owner"])
            reviews, claims = _read(whole)
            namespace = reviews[0].namespace
            answers = _answers(admission.beside(claims, namespace), reviews)
        except MalformedError as error:
            return plain_text(HTTPStatus.BAD_REQUEST, f"malformed simulation: {error}")
        except NotReadyError as error:
            return plain_text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        ms = 1000 * (time.perf_counter() - began)
        log("simulated", level="info", namespace=namespace, pods=len(reviews), ms=f"{ms:.2f}")
        return _json({"version": 1, "answers": answers})

    return call


def _of_owner(admission: Reviewer, raw: object) -> HttpAnswer:
    """Raises MalformedError or NotReadyError."""
    review = object_review.read(_bytes(raw))
    if not review.dry_run:
        raise MalformedError("owner.request: dryRun must be true")
    judging = admission.beside((), review.namespace)  # the worker's own is for the thread of its reviews
    answer = of_owner(review, judging.policy_for(review.namespace))
    admitted = None if answer.refusal else patched(review.object, answer.operations)
    return _json({"version": 1, "refusal": answer.refusal, "object": admitted})


def _answers(judging: Reviewer, reviews: Sequence[PodReview]) -> list[Json]:
    """Raises NotReadyError."""
    answers: list[Json] = []
    for number, asked in enumerate(reviews):
        review = replace(asked, dry_run=False)  # it counts for the pods after it
        answer = judging.admitted(review, judging.mutate(review), str(number))
        pod = _numbered(patched(review.pod, answer.operations), judging.policy_for(review.namespace))
        answers.append(
            {
                "refusal": answer.refusal,
                "standing": answer.audit.get("standing", ""),
                "held": answer.audit.get("held", ""),
                "protected": "protected" in answer.audit,
                "pod": None if answer.refusal else pod,
            }
        )
    return answers


def _object(body: bytes) -> Json:
    """Raises MalformedError."""
    if not is_readable(body, MAX_MARKS // 2):  # each review in it is decoded again
        raise MalformedError("the body has too many parts to be read")
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the body is not JSON: {error}") from error
    return mapping(whole)


def _read(whole: Json) -> tuple[list[PodReview], list[Json]]:
    """Raises MalformedError."""
    reviews = [_review(raw) for raw in sequence(whole.get("reviews"))]
    if not reviews:
        raise MalformedError("reviews: must be a list of AdmissionReviews")
    return reviews, [mapping(claim) for claim in sequence(whole.get("claims"))]


def _review(raw: object) -> PodReview:
    """Raises MalformedError."""
    review = read(_bytes(raw))
    if not review.dry_run or review.operation != "CREATE" or review.subresource:
        raise MalformedError("reviews: each must be of a pod's creation, with dryRun true")
    pod = defaulting.pod(review.pod)
    spec = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", **pod["spec"]}
    return replace(review, pod={**pod, "spec": spec})


def _bytes(raw: object) -> bytes:
    """A review as it is posted alone. Raises MalformedError."""
    try:
        return orjson.dumps(raw)
    except orjson.JSONEncodeError as error:
        raise MalformedError("a review must not be nested more than 250 levels deep") from error


def _numbered(pod: Json, policy: AdmissionPolicy) -> Json:
    """The pod with the numbers of its priority class, as the API server sets them after admission."""
    spec = pod["spec"]
    named = spec.get("priorityClassName")
    found = next((e for e in (policy.in_budget, policy.over_budget) if e.name == named), None)
    if found is None or found.value is None:
        return pod
    numbers = {"priority": found.value}
    if found.preemption_policy is not None:
        return {**pod, "spec": {**spec, **numbers, "preemptionPolicy": found.preemption_policy}}
    return {**pod, "spec": {**spec, **numbers}}


def _json(answer: dict[str, Any]) -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, "application/json", orjson.dumps(answer))
