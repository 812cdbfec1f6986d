"""The webhook's routes. Everything that decides is behind `Reviewer`; what takes reviews is `ReviewEndpoint`,
in front; the rest is here."""

from collections.abc import Sequence

from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from timekeeper.runtime.log import Log
from webhook.admission import workloads
from webhook.admission.workloads import TemplatePath
from webhook.metrics import FiguresGoneError, Metrics
from webhook.server.review_endpoint import ReviewEndpoint, ReviewRoute
from webhook.server.reviewer import Reviewer
from webhook.wire import object_review
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer, read


def create_app(
    admission: Reviewer, metrics: Metrics, log: Log, template_paths: Sequence[TemplatePath] = ()
) -> Flask:
    """The WSGI application: POST /mutate, /validate, /templates, /budgets, GET /livez, /readyz, /metrics.

    ``template_paths``: where kinds beyond the built-in ones keep their pod templates."""
    app = Flask("webhook", static_folder=None)

    def of_template(review: ObjectReview) -> AdmissionAnswer:
        return workloads.judge(review, admission.policy_for(review.namespace), template_paths)

    def of_budgets(review: ObjectReview) -> AdmissionAnswer:
        from webhook.admission import (
            budgets,  # brings PyYAML, which no worker needs that reviews pods alone
        )

        return budgets.judge(review)

    webhooks = (
        ReviewRoute("mutate", read, admission.mutate),
        ReviewRoute("validate", read, admission.validate),
        ReviewRoute("templates", object_review.read, of_template),
        ReviewRoute("budgets", object_review.read, of_budgets),
    )
    app.wsgi_app = ReviewEndpoint(webhooks, app.wsgi_app, metrics, log)  # type: ignore[method-assign] # Flask's way

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


def _said(status: int, sentence: str) -> Response:
    return Response(sentence + "\n", status=status, mimetype="text/plain")
