"""Reviews of pods: /mutate refuses or governs, /validate checks the pod again after all other webhooks."""

from collections.abc import Callable
from datetime import UTC, datetime

from timekeeper.core.request.request import parse_new
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown
from timekeeper.core.wire import HeldFor
from webhook.admission.answers import answer, is_exempt, split_by_mode
from webhook.admission.reinvocation import (
    accelerators_of_first_call,
    not_governed,
    policy_of_first_call,
)
from webhook.admission.warnings import CHARGED_AS_ASSUMED, UNMETERED, governing_warnings
from webhook.mutation import ephemeral
from webhook.mutation.govern import govern, placed_by
from webhook.policy import AdmissionPolicy, Standing
from webhook.rules.forged import without_sidecar_if_name_taken
from webhook.rules.isolation import ephemeral_violations
from webhook.rules.pod_rules import pod_violations, unrequested_devices
from webhook.wire.marks import declared_time
from webhook.wire.pod_review import AdmissionAnswer, PodReview

NOTHING_TO_DO = AdmissionAnswer("passed")
UNREADABLE = AdmissionAnswer("passed", warnings=(UNMETERED,))
ASSUMED = AdmissionAnswer("passed", warnings=(CHARGED_AS_ASSUMED,))
VALID = AdmissionAnswer("valid")
KUBELETS = "system:nodes"  # they create mirrors of static pods, which run whether these are admitted or not


def mutate(
    review: PodReview, standing_of: Callable[[str], Standing], policy: AdmissionPolicy
) -> AdmissionAnswer:
    """Refuses with every violation, or gives the patch that governs the pod; pods without a request pass.

    ``standing_of`` is called for the pod's namespace, and only where the pod is about to be governed.
    """
    if review.operation == "UPDATE" and review.subresource == "ephemeralcontainers":
        operations = ephemeral.hide_cards(review.pod, review.old) if policy.mode == "enforce" else ()
        return AdmissionAnswer("governed", operations=operations) if operations else NOTHING_TO_DO
    if review.operation != "CREATE" or review.subresource or policy.mode == "meter":
        return NOTHING_TO_DO
    parsed = parse_new(review.pod, policy.unknown_accelerators)
    violations, exempt = pod_violations(review.pod, parsed, policy), is_exempt(review, policy)
    if parsed.request is None or split_by_mode(violations, policy, exempt)[0]:
        unread = UNREADABLE if policy.mode == "enforce" else ASSUMED
        return answer(unread if parsed.violations else NOTHING_TO_DO, violations, policy, exempt)
    standing = standing_of(review.namespace)
    good = _governed(review, parsed.request, standing, without_sidecar_if_name_taken(violations, policy))
    return answer(good, (*violations, *budget_violations(review.namespace, standing)), policy, exempt)


def validate(review: PodReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Refuses a pod that breaks a rule, or that is not governed by the standing recorded in it; in observe
    mode nothing is refused, and no pod is governed."""
    if policy.mode == "meter":
        return NOTHING_TO_DO
    violations: tuple[Violation, ...]
    if review.operation == "UPDATE" and review.subresource == "ephemeralcontainers":
        violations, good = tuple(ephemeral_violations(review.pod, review.old)), NOTHING_TO_DO
    elif review.operation != "CREATE" or review.subresource:
        return NOTHING_TO_DO
    else:
        first = policy_of_first_call(review.pod, policy)
        parsed, good = parse_new(review.pod, accelerators_of_first_call(review.pod, policy)), VALID
        broken = pod_violations(review.pod, parsed, first)
        governing = without_sidecar_if_name_taken(broken, first)
        unrequested = () if KUBELETS in review.groups else unrequested_devices(review.pod, parsed)
        ungoverned = not_governed(review.pod, parsed, governing) if policy.mode == "enforce" else ()
        violations = (*broken, *unrequested, *ungoverned)
    return answer(good, violations, policy, is_exempt(review, policy))


def budget_violations(namespace: str, standing: Standing) -> tuple[Violation, ...]:
    """The violation of a pod whose namespace is over budget with `onExhausted: deny`."""
    if standing.status != "OVER_BUDGET" or standing.on_exhausted != "deny":
        return ()
    until = "the budget is raised"
    if standing.until_ms is not None:
        moment = datetime.fromtimestamp(standing.until_ms // 1000, UTC)
        until += f" or the next period begins ({moment:%Y-%m-%d %H:%M} UTC)"
    used = (
        f"Namespace {namespace}: pods admitted in the last few seconds will use the remaining GPU budget"
        if standing.by_estimate
        else f"Namespace {namespace} has used its GPU budget"
    )
    sentence = (
        f"{used} (onExhausted: deny). New GPU pods are refused until {until}. Ask your budget administrator."
    )
    return (Violation("budget-exhausted", "metadata.namespace", shown(namespace), sentence, "", ""),)


def _audit(standing: Standing, hold: HeldFor) -> dict[str, str]:
    protected = {"protected": "true"} if standing.is_protected else {}
    return {"standing": standing.status} | ({"held": hold} if hold else {}) | protected


def _governed(
    review: PodReview, request: GPURequest, standing: Standing, policy: AdmissionPolicy
) -> AdmissionAnswer:
    by_other = placed_by(review.pod["spec"], request.dialect, policy) != policy.scheduler_name
    hold = policy.hold_of(standing, by_other)
    declared = declared_time(review.pod) if policy.reserves_declared and hold == "budget" else ""
    governing = policy.mode == "enforce"
    operations = govern(review.pod, request, standing.status, policy, hold, declared) if governing else []
    return AdmissionAnswer(
        "governed" if operations else "unchanged" if governing else "observed",
        operations=tuple(operations),
        warnings=governing_warnings(review, request, standing, policy, hold),
        audit=_audit(standing, hold),
        request=request,
    )
