"""The routes that take AdmissionReviews, as WSGI in front of Flask: a review's body in, its answer out, with
its figures and its log line.

Flask answers every other route. Its way to a view and back costs more than judging a pod does, so what each
GPU pod's creation waits for goes without (docs/decisions/0007).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from timekeeper.core.request import mapping
from webhook.admission import NotReadyError
from webhook.connection import MOST_BODY_BYTES
from webhook.log import Log
from webhook.metrics import Metrics
from webhook.review import Answer, MalformedError, Review, encode
from webhook.reviews_of_objects import ObjectReview

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

R = TypeVar("R", Review, ObjectReview)
Said = tuple[HTTPStatus, str, bytes]


@dataclass(frozen=True, slots=True)
class Webhook(Generic[R]):
    """One of our webhooks: how its reviews are read, and how they are decided."""

    name: str
    read: Callable[[bytes], R]
    decide: Callable[[R], Answer]


class Posted:
    """A WSGI application: reviews posted to a webhook's path are answered, the rest is for ``others``."""

    def __init__(
        self,
        webhooks: Iterable[Webhook[Review] | Webhook[ObjectReview]],
        others: "WSGIApplication",
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._webhooks: Mapping[str, Webhook[Any]] = {f"/{each.name}": each for each in webhooks}
        self._others, self._metrics, self._log = others, metrics, log

    def __call__(self, environ: dict[str, Any], start_response: "StartResponse") -> Iterable[bytes]:
        """Called by the server for each request."""
        webhook = self._webhooks.get(environ["PATH_INFO"])
        if webhook is None:
            return self._others(environ, start_response)
        status, kind, body = self._answer(webhook, environ)
        headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "POST"))
        start_response(_STATUS[status], headers)
        return [body]

    def _answer(self, webhook: Webhook[R], environ: Mapping[str, Any]) -> Said:
        if environ["REQUEST_METHOD"] != "POST":
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "reviews are posted here")
        length = _length(environ)
        if length > MOST_BODY_BYTES:
            return _said(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {MOST_BODY_BYTES} bytes")
        started = time.perf_counter()
        try:
            review = webhook.read(environ["wsgi.input"].read(length))
            answer = webhook.decide(review)
        except MalformedError as error:
            self._metrics.malformed()
            self._log("malformed", webhook=webhook.name, reason=error)
            return _said(HTTPStatus.BAD_REQUEST, f"malformed AdmissionReview: {error}")
        except NotReadyError as error:
            self._metrics.not_ready(webhook.name)
            self._log("not-ready", webhook=webhook.name, reason=error)
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        body = encode(review.uid, answer)
        seconds = time.perf_counter() - started
        self._metrics.answered(webhook.name, answer, seconds)
        self._log("review", **_fields(webhook.name, review, answer, seconds))
        return HTTPStatus.OK, "application/json", body


_STATUS = {each: f"{each.value} {each.phrase}" for each in HTTPStatus}


def _said(status: HTTPStatus, sentence: str) -> Said:
    return status, "text/plain; charset=utf-8", f"{sentence}\n".encode(errors="replace")


def _length(environ: Mapping[str, Any]) -> int:
    told = environ.get("CONTENT_LENGTH") or "0"
    return int(told) if told.isascii() and told.isdecimal() else 0


def _fields(webhook: str, review: Review | ObjectReview, answer: Answer, seconds: float) -> dict[str, object]:
    fields: dict[str, object] = {
        "webhook": webhook,
        "verdict": answer.verdict,
        "namespace": review.namespace,
    }
    if isinstance(review, Review):
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
