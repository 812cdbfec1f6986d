"""The routes that take AdmissionReviews, as WSGI in front of Flask: a review's body in, its answer out, with
its figures and its log line.

Flask answers every other route. Its way to a view and back costs more than judging a pod does, so what each
GPU pod's creation waits for goes without (docs/decisions/0007).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from timekeeper.core.json_values import mapping
from timekeeper.runtime.log import Log
from webhook.metrics import Metrics
from webhook.server.connection import MOST_BODY_BYTES
from webhook.server.reviewer import NotReadyError
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer, MalformedError, PodReview, encode

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

R = TypeVar("R", PodReview, ObjectReview)


class HttpAnswer(NamedTuple):
    """A whole answer: its status, its content's type, and its body."""

    status: HTTPStatus
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class ReviewRoute(Generic[R]):
    """One of our webhooks: how its reviews are read, and how they are decided."""

    name: str
    read: Callable[[bytes], R]
    decide: Callable[[R], AdmissionAnswer]


class ReviewEndpoint:
    """A WSGI application: reviews posted to a webhook's path are answered, the rest is for ``others``."""

    def __init__(
        self,
        webhooks: Iterable[ReviewRoute[PodReview] | ReviewRoute[ObjectReview]],
        others: "WSGIApplication",
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._webhooks: Mapping[str, ReviewRoute[Any]] = {f"/{each.name}": each for each in webhooks}
        self._others, self._metrics, self._log = others, metrics, log

    def __call__(self, environ: dict[str, Any], start_response: "StartResponse") -> Iterable[bytes]:
        """Called by any WSGI server for each request."""
        webhook = self._webhooks.get(environ["PATH_INFO"])
        if webhook is None:
            return self._others(environ, start_response)
        said = self._asked(webhook, environ)
        headers = [("Content-Type", said.kind), ("Content-Length", str(len(said.body)))]
        if said.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "POST"))
        start_response(f"{said.status.value} {said.status.phrase}", headers)
        return [said.body]

    def said(self, method: str, path: str, body: bytes) -> HttpAnswer | None:
        """What is answered to this; None where it is no review, and the WSGI application's to answer.

        For our own server, which has the whole body: WSGI's way there and back costs as much as reading a
        review."""
        webhook = self._webhooks.get(path) if method == "POST" else None
        return None if webhook is None else self._answer(webhook, body)

    def _asked(self, webhook: ReviewRoute[R], environ: Mapping[str, Any]) -> HttpAnswer:
        if environ["REQUEST_METHOD"] != "POST":
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "reviews are posted here")
        length = _length(environ)
        if length > MOST_BODY_BYTES:
            return _said(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {MOST_BODY_BYTES} bytes")
        return self._answer(webhook, environ["wsgi.input"].read(length))

    def _answer(self, webhook: ReviewRoute[R], posted: bytes) -> HttpAnswer:
        started = time.perf_counter()
        try:
            review = webhook.read(posted)
            answer = webhook.decide(review)
        except MalformedError as error:
            self._metrics.malformed()
            self._log("malformed", level="warning", webhook=webhook.name, reason=error)
            return _said(HTTPStatus.BAD_REQUEST, f"malformed AdmissionReview: {error}")
        except NotReadyError as error:
            self._metrics.not_ready(webhook.name)
            self._log("not-ready", level="warning", webhook=webhook.name, reason=error)
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        body = encode(review.uid, answer)
        seconds = time.perf_counter() - started
        self._metrics.answered(webhook.name, answer, seconds)
        self._log("review", level="info", **_fields(webhook.name, review, answer, seconds))
        return HttpAnswer(HTTPStatus.OK, "application/json", body)


def _said(status: HTTPStatus, sentence: str) -> HttpAnswer:
    return HttpAnswer(status, "text/plain; charset=utf-8", f"{sentence}\n".encode(errors="replace"))


def _length(environ: Mapping[str, Any]) -> int:
    told = environ.get("CONTENT_LENGTH") or "0"
    return int(told) if told.isascii() and told.isdecimal() else 0


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
    if answer.rules:
        fields["rules"] = ",".join(f"{rule}:{mode}" for rule, mode in answer.rules)
    if review.dry_run:
        fields["dry_run"] = "true"
    fields["ms"] = f"{1000 * seconds:.2f}"
    return fields


def _name(told: str, metadata: Mapping[str, Any]) -> str:
    """The object's name; what its controller begins it with, and a star, while it has none."""
    name, begins = metadata.get("name"), metadata.get("generateName")
    if told or isinstance(name, str):
        return told or str(name)
    return f"{begins}*" if isinstance(begins, str) else "*"
