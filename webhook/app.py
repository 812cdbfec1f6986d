"""The webhook's routes. Everything that decides is behind `Admission`; here are bodies, codes and log
lines."""

import time
from collections.abc import Callable

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from webhook.admission import Admission, NotReadyError
from webhook.log import Log
from webhook.metrics import FiguresGoneError, Metrics
from webhook.review import Answer, MalformedError, Review, encode, read

MOST_BODY_BYTES = 8 * 1024 * 1024  # the API server itself takes objects of 3 MiB; a review holds two at most


def create_app(admission: Admission, metrics: Metrics, log: Log) -> Flask:
    """The WSGI application: POST /mutate, POST /validate, GET /livez, /readyz, /metrics."""
    app = Flask("webhook", static_folder=None)

    def reviewed(webhook: str, decide: Callable[[Review], Answer]) -> Response:
        started = time.perf_counter()
        try:
            review = read(_body())
            answer = decide(review)
        except MalformedError as error:
            metrics.malformed()
            log("malformed", webhook=webhook, reason=error)
            return _said(400, f"malformed AdmissionReview: {error}")
        except NotReadyError as error:
            return _said(503, str(error))
        body = encode(review.uid, answer)
        seconds = time.perf_counter() - started
        metrics.answered(webhook, answer, seconds)
        log("review", **_fields(webhook, review, answer, seconds))
        return Response(body, mimetype="application/json")

    @app.post("/mutate")
    def mutate() -> Response:
        return reviewed("mutate", admission.mutate)

    @app.post("/validate")
    def validate() -> Response:
        return reviewed("validate", admission.validate)

    @app.get("/livez")
    def livez() -> Response:
        return _said(200, "ok")

    @app.get("/readyz")
    def readyz() -> Response:
        unready = admission.unready()
        return _said(503, unready) if unready else _said(200, "ok")

    @app.get("/metrics")
    def exposition() -> Response:
        try:
            return Response(metrics.exposition(), mimetype="text/plain")
        except FiguresGoneError:
            return _said(503, "the folder with the workers' figures is gone; restart the webhook")

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        return _said(error.code or 500, f"{error.name}: {error.description}")

    return app


def _body() -> bytes:
    """The request's body, as long as it says. Werkzeug's own way there costs as much as judging a pod."""
    length = request.content_length or 0
    if length > MOST_BODY_BYTES:
        raise RequestEntityTooLarge(f"a body may have {MOST_BODY_BYTES} bytes")
    body: bytes = request.environ["wsgi.input"].read(length)
    return body


def _fields(webhook: str, review: Review, answer: Answer, seconds: float) -> dict[str, object]:
    fields: dict[str, object] = {
        "webhook": webhook,
        "verdict": answer.verdict,
        "namespace": review.namespace,
        "pod": _name(review),
        "operation": review.operation,
    }
    if review.subresource:
        fields["subresource"] = review.subresource
    if "standing" in answer.audit:
        fields["standing"] = answer.audit["standing"]
    if answer.rules:
        fields["rules"] = ",".join(answer.rules)
    if review.dry_run:
        fields["dry_run"] = "true"
    return fields | {"ms": f"{1000 * seconds:.2f}"}


def _name(review: Review) -> str:
    """The pod's name; what its controller begins it with, and a star, while it has none."""
    metadata = review.pod.get("metadata", {})
    return review.name or metadata.get("name") or f"{metadata.get('generateName') or ''}*"


def _said(status: int, sentence: str) -> Response:
    return Response(sentence + "\n", status=status, mimetype="text/plain")
