"""The endpoints that take AdmissionReviews: a review's body in, its answer out, with its metrics and its log
line.

The loop calls them without Flask (docs/decisions/0007): Flask's way to a view and back costs more than
judging a pod does, and each GPU pod's creation waits for it.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import Any, Generic, TypeVar

from timekeeper.core.admission.pods import MalformedError
from timekeeper.core.json_values import mapping
from timekeeper.runtime.http.service import (
    Handler,
    HttpAnswer,
    HttpLimits,
    HttpRequest,
    PostCall,
    Route,
    plain_text,
)
from webhook.log import Log
from webhook.metrics import WebhookMetrics
from webhook.server.reviewer import NotReadyError
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer, PodReview, encode

MAX_REVIEW_BYTES = 8 * 1024 * 1024  # the API server takes objects of 3 MiB, and a review holds two at most
LARGE_BYTES = 256 * 1024
# Two workers share the manifest's 512 MiB. Each holds so much that clients have sent, half of it in large
# reviews that wait, and up to 100 MiB of values of the one that it answers.
LIMITS = HttpLimits(MAX_REVIEW_BYTES, unanswered_bytes=3 * MAX_REVIEW_BYTES)

# An API server writes a review's namespace before the object.
_NAMESPACE, _HEAD_BYTES = re.compile(rb'"namespace" ?: ?"([^"]{1,63})"'), 8192

_UNVERIFIED = plain_text(
    HTTPStatus.FORBIDDEN,
    "reviews are answered only to clients with a certificate of --client-ca; allowed: the API server, by the "
    "kubeconfig of its AdmissionConfiguration",
)

_BUSY = plain_text(HTTPStatus.SERVICE_UNAVAILABLE, "other large reviews wait already: try again")

R = TypeVar("R", PodReview, ObjectReview)


@dataclass(frozen=True, slots=True)
class ReviewRoute(Generic[R]):
    """One webhook: how its reviews are parsed and decided."""

    name: str
    read: Callable[[bytes], R]
    decide: Callable[[R], AdmissionAnswer]


def review_calls(
    webhooks: Iterable[ReviewRoute[PodReview] | ReviewRoute[ObjectReview]], metrics: WebhookMetrics, log: Log
) -> dict[str, PostCall]:
    """path -> what answers a review that is posted there."""

    def call(webhook: ReviewRoute[Any]) -> PostCall:
        return lambda posted: _answer(webhook, metrics, log, posted)

    return {f"/{each.name}": call(each) for each in webhooks}


def review_routes(
    calls: Mapping[str, PostCall], log: Log, verified_only: bool = False, aside: Collection[str] = ()
) -> tuple[Route, ...]:
    """The calls as routes of the loop: a review is pure computation, and threads would only slow it down.
    Large ones, and those of the paths ``aside``, are answered beside it, one at a time; where no more may
    wait, the last of the namespace that has most gives way. ``verified_only``: a caller without a certificate
    of the client CA gets 403, and nothing is counted."""
    waiting: dict[object, tuple[bytes, int]] = {}  # large reviews: namespace and size
    answering = Lock()  # of one at a time

    def has_place(namespace: bytes, size: int) -> bool:
        while True:
            sizes = Counter[bytes]()
            for owner, taken in tuple(waiting.values()):
                sizes[owner] += taken
            if sizes.total() + size <= LIMITS.unanswered_bytes // 2:
                return True
            most = max(sizes, key=lambda owner: sizes[owner], default=namespace)
            if sizes[most] <= sizes[namespace] + size:
                return False
            last = [ticket for ticket, (owner, _) in tuple(waiting.items()) if owner == most][-1:]
            for ticket in last:
                waiting.pop(ticket, None)  # it is answered that it has to come again

    def route(path: str, call: PostCall) -> Route:
        def answer(ticket: object, request: HttpRequest) -> HttpAnswer:
            with answering:
                return _BUSY if waiting.pop(ticket, None) is None else call(request.body)

        def handler(request: HttpRequest) -> HttpAnswer | Handler:
            size = len(request.body)
            if verified_only and not request.is_verified:
                log("unverified-caller", level="warning", peer=request.client[0], path=path)
                return _UNVERIFIED
            if path not in aside and size <= LARGE_BYTES:
                return call(request.body)
            named = _NAMESPACE.search(request.body, 0, _HEAD_BYTES)
            namespace = named[1] if named else b""
            if not has_place(namespace, size):
                return _BUSY
            ticket = object()
            waiting[ticket] = namespace, size
            return partial(answer, ticket)

        return Route("POST", path, handler)

    return tuple(route(path, call) for path, call in calls.items())


def _answer(webhook: ReviewRoute[R], metrics: WebhookMetrics, log: Log, posted: bytes) -> HttpAnswer:
    started = time.perf_counter()
    try:
        review = webhook.read(posted)
        answer = webhook.decide(review)
    except MalformedError as error:
        metrics.malformed()
        log("malformed", level="warning", webhook=webhook.name, reason=error)
        return plain_text(HTTPStatus.BAD_REQUEST, f"malformed AdmissionReview: {error}")
    except NotReadyError as error:
        metrics.not_ready(webhook.name)
        log("not-ready", level="warning", webhook=webhook.name, reason=error)
        return plain_text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    body = encode(review.uid, answer)
    seconds = time.perf_counter() - started
    metrics.answered(webhook.name, answer, seconds)
    log("review", level="info", **_fields(webhook.name, review, answer, seconds))
    return HttpAnswer(HTTPStatus.OK, "application/json", body)


def _fields(
    webhook: str, review: PodReview | ObjectReview, answer: AdmissionAnswer, seconds: float
) -> dict[str, object]:
    fields: dict[str, object] = {
        "webhook": webhook,
        "verdict": answer.verdict,
        "namespace": review.namespace,
    }
    if isinstance(review, PodReview):
        fields["pod"] = _name(review.name, mapping(review.pod.get("metadata")))
    else:
        fields["kind"] = review.kind
        fields["name"] = _name(review.name, mapping(review.object.get("metadata")))
    fields["operation"] = review.operation
    if review.subresource:
        fields["subresource"] = review.subresource
    if "standing" in answer.audit:
        fields["standing"] = answer.audit["standing"]
    if "held" in answer.audit:
        fields["held"] = answer.audit["held"]
    if answer.rules:
        fields["rules"] = ",".join(f"{rule}:{mode}" for rule, mode in answer.rules)
    if review.dry_run:
        fields["dry_run"] = "true"
    fields["ms"] = f"{1000 * seconds:.2f}"
    return fields


def _name(told: str, metadata: Mapping[str, Any]) -> str:
    """The object's name; where it has none yet, its generateName and a star."""
    name, begins = metadata.get("name"), metadata.get("generateName")
    if told or isinstance(name, str):
        return told or str(name)
    return f"{begins}*" if isinstance(begins, str) else "*"
