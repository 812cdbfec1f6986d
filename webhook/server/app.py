"""The webhook's routes. `Reviewer` decides; `review_endpoint` takes the reviews."""

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from uuid import uuid4

from flask import Flask, Response

from timekeeper.core.decisions import Decision, Record, record_nothing
from timekeeper.edge.clock import monotonic_ms
from timekeeper.edge.source_health import SourceHealth, readiness_lines
from timekeeper.runtime.http.problem_details import answer_with_problems
from timekeeper.runtime.http.service import PostCall
from webhook.admission import claims, decisions, gangs, workloads
from webhook.admission.validation import validate
from webhook.admission.workloads import TemplatePath
from webhook.log import Log
from webhook.metrics import WebhookMetrics
from webhook.server.owner_events import Notice
from webhook.server.review_endpoint import ReviewRoute, review_calls
from webhook.server.reviewer import Reviewer
from webhook.wire import object_review
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer, PodReview, read


def create_calls(
    admission: Reviewer,
    metrics: WebhookMetrics,
    log: Log,
    template_paths: Sequence[TemplatePath] = (),
    notice: Notice = lambda _review, _answer: None,
    record: Record = record_nothing,
) -> dict[str, PostCall]:
    """What answers a review that is posted to /mutate, /validate, /templates, /jobs, /gangs, /claims or
    /budgets.

    ``template_paths``: where kinds beyond the built-in ones keep their pod templates; ``notice``: called with
    each answer of /mutate and /validate, must not wait; ``record``: called with each decision that people may
    ask about."""

    def recorded(review: PodReview | ObjectReview, decision: Decision | None) -> None:
        if decision is not None and not review.dry_run:
            group = admission.deciding_group(review.namespace)
            for each in decisions.of_each_owner(decision, review):
                record(decisions.by_account(each, group))

    admitting = Lock()  # a large review has a thread of its own

    def of_pod(review: PodReview) -> AdmissionAnswer:
        with admitting:
            answer = admission.mutate(review)
        notice(review, answer)
        recorded(review, decisions.of_creation(review, answer, monotonic_ms()))
        return answer

    def of_governed(review: PodReview) -> AdmissionAnswer:
        policy = admission.policy_for(review.namespace)
        answer = validate(review, policy)
        with admitting:
            answer = admission.admitted(review, answer)
        notice(review, answer)
        is_over = admission.is_over_budget(review.namespace)
        recorded(review, decisions.of_admission(review, answer, policy, is_over, monotonic_ms()))
        return answer

    def of_template(review: ObjectReview) -> AdmissionAnswer:
        policy, is_held = admission.policy_for(review.namespace), admission.holds(review.namespace)
        return of_owner(review, workloads.judge(review, policy, template_paths, is_held))

    def of_owner(review: ObjectReview, answer: AdmissionAnswer) -> AdmissionAnswer:
        notice(review, answer)
        recorded(review, decisions.of_template(review, answer, monotonic_ms()))
        return answer

    def of_job(review: ObjectReview) -> AdmissionAnswer:
        return workloads.with_jobs_duration(review, admission.policy_for(review.namespace))

    def of_gang(review: ObjectReview) -> AdmissionAnswer:
        return of_owner(review, gangs.of_owner(review, admission.policy_for(review.namespace)))

    def of_claim(review: ObjectReview) -> AdmissionAnswer:
        return claims.with_toleration(review, admission.policy_for(review.namespace), uuid4().hex)

    def of_budgets(review: ObjectReview) -> AdmissionAnswer:
        from webhook.admission import (
            budgets,  # loads PyYAML, which reviews of pods do not need
        )

        return budgets.judge(review, admission.standing_word, admission.preempting)

    webhooks = (
        ReviewRoute("mutate", read, of_pod),
        ReviewRoute("validate", read, of_governed),
        ReviewRoute("templates", object_review.read, of_template),
        ReviewRoute("jobs", object_review.read, of_job),
        ReviewRoute("gangs", object_review.read, of_gang),
        ReviewRoute("claims", object_review.read, of_claim),
        ReviewRoute("budgets", object_review.read, of_budgets),
    )
    return review_calls(webhooks, metrics, log)


def create_app(admission: Reviewer, sources: Callable[[], Iterable[SourceHealth]] = tuple) -> Flask:
    """The WSGI application, for probes: GET /livez and /readyz. ``sources``: what is followed."""
    app = Flask("webhook", static_folder=None)

    @app.get("/livez")
    def livez() -> Response:
        return _said(200, "ok")

    @app.get("/readyz")
    def readyz() -> Response:
        unready = admission.unready()
        return _said(503, unready) if unready else _said(200, "\n".join(("ok", *readiness_lines(sources()))))

    answer_with_problems(app)
    return app


def _said(status: int, sentence: str) -> Response:
    return Response(sentence + "\n", status=status, mimetype="text/plain")
