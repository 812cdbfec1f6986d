"""``POST /simulate``: what /mutate would answer to a review under given standings, without an effect: no
estimate of what was admitted, no Event, no decision, and no count of a review."""

import time
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

import orjson

from timekeeper.core.admission.json_patch import patched
from timekeeper.core.admission.pods import MalformedError
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.protection import takes_of
from timekeeper.core.admission.table import StandingsTable
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.standings import UndecodableStandingsError
from timekeeper.runtime.http.service import HttpAnswer, PostCall, plain_text
from timekeeper.runtime.log import Log
from webhook.admission.gangs import of_owner
from webhook.server.reviewer import NotReadyError, Reviewer
from webhook.standings import decode
from webhook.wire import defaulting, object_review
from webhook.wire.pod_review import AdmissionAnswer, PodReview, read

PATH = "/simulate"


def simulation_call(admission: Reviewer, now_ms: Callable[[], int], log: Log) -> PostCall:
    """The call: ``{"review": AdmissionReview, "standings": as of GET /v1/standings}`` in, and perhaps
    ``claims``, the claims and templates that are supposed; out come the answer and the pod as it would be
    stored. The review must have ``dryRun``. Its pod need not have what an API server sets before it calls
    webhooks. With ``owner`` instead of ``review``: an owner of pods, and the answer of /gangs."""

    def call(body: bytes) -> HttpAnswer:
        began = time.perf_counter()
        try:
            whole = _object(body)
            if "owner" in whole:
                return _of_owner(admission, whole, now_ms())
            review, claims = _read(whole)
            table = decode(orjson.dumps(whole["standings"]), "", now_ms())
            judging = admission.beside(table, claims, review.namespace)
            answer = judging.mutate(review)
            policy = judging.policy_for(review.namespace)
        except (MalformedError, UndecodableStandingsError) as error:
            return plain_text(HTTPStatus.BAD_REQUEST, f"malformed simulation: {error}")
        except NotReadyError as error:
            return plain_text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        ms = 1000 * (time.perf_counter() - began)
        log("simulated", level="info", namespace=review.namespace, verdict=answer.verdict, ms=f"{ms:.2f}")
        takes = _takes(table, review, answer)
        return HttpAnswer(HTTPStatus.OK, "application/json", _answer(review, answer, policy, takes))

    return call


def _of_owner(admission: Reviewer, whole: Json, now_ms: int) -> HttpAnswer:
    """Raises MalformedError, UndecodableStandingsError or NotReadyError."""
    review = object_review.read(orjson.dumps(whole["owner"]))
    if not review.dry_run:
        raise MalformedError("owner.request: dryRun must be true")
    judging = admission.beside(decode(orjson.dumps(whole["standings"]), "", now_ms), (), review.namespace)
    answer = of_owner(review, judging.policy_for(review.namespace))
    admitted = None if answer.refusal else patched(review.object, answer.operations)
    found = {"version": 1, "refusal": answer.refusal, "object": admitted}
    return HttpAnswer(HTTPStatus.OK, "application/json", orjson.dumps(found))


def _takes(table: StandingsTable, review: PodReview, answer: AdmissionAnswer) -> int:
    """What a protected pod takes of the floor; 0 for others."""
    published = table.entry_of(review.namespace).protect
    if published is None or answer.request is None or "protected" not in answer.audit:
        return 0
    return takes_of(published, answer.request, table.settings.lookahead_ms)


def _answer(review: PodReview, answer: AdmissionAnswer, policy: AdmissionPolicy, takes: int) -> bytes:
    pod = _numbered(patched(review.pod, answer.operations), policy)
    return orjson.dumps(
        {
            "version": 1,
            "verdict": answer.verdict,
            "refusal": answer.refusal,
            "warnings": answer.warnings,
            "standing": answer.audit.get("standing", ""),
            "held": answer.audit.get("held", ""),
            "protected": takes,
            "pod": None if answer.refusal else pod,
        }
    )


def _object(body: bytes) -> Json:
    """Raises MalformedError."""
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the body is not JSON: {error}") from error
    if not isinstance(whole, dict) or not isinstance(whole.get("standings"), dict):
        raise MalformedError("standings: must be an object")
    return whole


def _read(whole: Json) -> tuple[PodReview, list[Json]]:
    """Raises MalformedError."""
    review = read(orjson.dumps(whole.get("review")))
    if not review.dry_run or review.operation != "CREATE" or review.subresource:
        raise MalformedError("review.request: must be of a pod's creation, with dryRun true")
    raw = defaulting.pod(review.pod)
    spec = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", **raw["spec"]}
    claims = [mapping(each) for each in sequence(whole.get("claims"))]
    return replace(review, pod={**raw, "spec": spec}), claims


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
