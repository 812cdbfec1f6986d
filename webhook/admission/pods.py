"""Reviews of pods: /mutate refuses or governs, /validate checks the pod again after all other webhooks."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from timekeeper.core.admission.admission import Admission, admission_of
from timekeeper.core.admission.json_patch import Operation, merged, patched
from timekeeper.core.admission.mutation.govern import govern
from timekeeper.core.admission.mutation.visible_devices import hide_cards
from timekeeper.core.admission.mutation.whole_cards import in_bursars_words
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.rules.exhausted import budget_violations
from timekeeper.core.admission.rules.export import as_written, is_export
from timekeeper.core.admission.rules.forged import forgery_violations, without_sidecar_if_name_taken
from timekeeper.core.admission.rules.isolation import ephemeral_violations
from timekeeper.core.admission.rules.modes import split_by_mode, would_refuse
from timekeeper.core.admission.rules.pod_rules import pod_violations, unrequested_devices
from timekeeper.core.dialects.others.claims import record_of_none
from timekeeper.core.kube.static_pods import is_own_mirror
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation
from webhook.admission.answers import answer, is_exempt, with_causes
from webhook.admission.reinvocation import (
    not_governed,
    parsed_again,
    parsed_by_first_call,
    policy_of_first_call,
    recorded_admission,
)
from webhook.admission.warnings import (
    CHARGED_AS_ASSUMED,
    EXPORT,
    STATIC_POD,
    UNMETERED,
    WHOLE_CARDS,
    governing_warnings,
)
from webhook.wire.pod_review import AdmissionAnswer, PodReview

NOTHING_TO_DO = AdmissionAnswer("passed")
UNREADABLE = AdmissionAnswer("passed", warnings=(UNMETERED,))
ASSUMED = AdmissionAnswer("passed", warnings=(CHARGED_AS_ASSUMED,))
VALID = AdmissionAnswer("valid")
MIRROR = AdmissionAnswer("passed", warnings=(STATIC_POD,))


def mutate(
    review: PodReview, standing_of: Callable[[GPURequest], Standing], policy: AdmissionPolicy
) -> AdmissionAnswer:
    """Refuses with every violation, or gives the patch that governs the pod; pods without a request pass.

    ``standing_of`` is called for the pod's request, and only where the pod is about to be governed.
    """
    return with_causes(_mutate(review, standing_of, policy), review, policy.mode != "enforce")


def _mutate(
    review: PodReview, standing_of: Callable[[GPURequest], Standing], policy: AdmissionPolicy
) -> AdmissionAnswer:
    if review.operation == "UPDATE" and review.subresource == "ephemeralcontainers":
        operations = hide_cards(review.pod, review.old) if policy.mode == "enforce" else ()
        return AdmissionAnswer("governed", operations=operations) if operations else NOTHING_TO_DO
    if review.operation != "CREATE" or review.subresource or policy.mode == "meter":
        return NOTHING_TO_DO
    if is_own_mirror(review.pod, review.user, review.groups):
        return _mirror(review, policy)
    if policy.mode == "enforce" and is_export(review.pod):
        return _after_first(review, as_written(review.pod, policy), standing_of, policy, EXPORT)
    parsed = parsed_again(review, policy)
    first = in_bursars_words(review.pod, parsed.request, policy) if policy.mode == "enforce" else []
    if first:
        return _after_first(review, first, standing_of, policy, WHOLE_CARDS)
    violations, exempt = pod_violations(review.pod, parsed, policy), is_exempt(review, policy)
    if parsed.request is None or split_by_mode(violations, policy, exempt)[0]:
        unread = UNREADABLE if policy.mode == "enforce" else ASSUMED
        good = unread if parsed.violations else _passed(review, policy)
        return answer(good, violations, policy, exempt)
    standing = standing_of(parsed.request)
    governing = without_sidecar_if_name_taken(violations, policy)
    admission = admission_of(review.pod, parsed.request, standing, governing)
    if parsed.request.asks:  # else it may turn out to ask for no GPU
        violations = (*violations, *budget_violations(review.namespace, standing, parsed.request))
    good = _governed(review, admission, would_refuse(violations, policy, exempt))
    return answer(good, violations, policy, exempt)


def _after_first(
    review: PodReview,
    first: Sequence[Operation],
    standing_of: Callable[[GPURequest], Standing],
    policy: AdmissionPolicy,
    warning: str,
) -> AdmissionAnswer:
    """The answer to the pod that the first operations make, with them and a warning of them."""
    answered = _mutate(replace(review, pod=patched(review.pod, first)), standing_of, policy)
    if answered.refusal:
        return answered
    operations, warnings = (*first, *answered.operations), (*answered.warnings, warning)
    return replace(answered, operations=operations, warnings=warnings)


def _mirror(review: PodReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Of the mirror that a kubelet makes of its static pod: admitted as it is, for the pod runs anyway. What
    only Bursar writes is refused in it as in any pod."""
    parsed = policy.parsed(review.pod, review.namespace)
    good = MIRROR if parsed.request is not None or parsed.violations else NOTHING_TO_DO
    return answer(good, tuple(forgery_violations(review.pod, None)), policy, is_exempt(review, policy))


def _passed(review: PodReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Of a pod without a request: if it has claims, it is recorded that they are of no GPUs."""
    record = record_of_none(review.pod) if policy.mode == "enforce" else {}
    operations = merged(review.pod["metadata"], "/metadata", "annotations", record)
    return replace(NOTHING_TO_DO, operations=tuple(operations)) if operations else NOTHING_TO_DO


def validate(review: PodReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Refuses a pod that breaks a rule, or that is not governed by the standing recorded in it; in observe
    mode nothing is refused, and no pod is governed."""
    if policy.mode == "meter":
        return NOTHING_TO_DO
    violations: tuple[Violation, ...]
    admission = None
    if review.operation == "UPDATE" and review.subresource == "ephemeralcontainers":
        violations, good = tuple(ephemeral_violations(review.pod, review.old)), NOTHING_TO_DO
    elif review.operation != "CREATE" or review.subresource:
        return NOTHING_TO_DO
    elif is_own_mirror(review.pod, review.user, review.groups):
        violations, good = tuple(forgery_violations(review.pod, None)), VALID
    else:
        first = policy_of_first_call(review.pod, policy)
        parsed, good = parsed_by_first_call(review, policy), VALID
        broken = pod_violations(review.pod, parsed, first)
        governing = without_sidecar_if_name_taken(broken, first)
        violations = (*broken, *unrequested_devices(review.pod, parsed))
        if parsed.request is not None and policy.mode == "enforce":
            admission = recorded_admission(review.pod, parsed.request, governing)
            violations = (*violations, *not_governed(review.pod, admission))
    answered = answer(good, violations, policy, is_exempt(review, policy))
    return with_causes(answered, review, True) if answered.refusal else replace(answered, admission=admission)


def _governed(review: PodReview, admission: Admission, is_refused: bool) -> AdmissionAnswer:
    """``is_refused``: with enforcement on it would be."""
    standing, hold = admission.standing, admission.hold
    protected = {"protected": "true"} if standing.is_protected else {}
    governing = admission.policy.mode == "enforce"
    operations = govern(review.pod, admission) if governing else []
    return AdmissionAnswer(
        "governed" if operations else "unchanged" if governing else "observed",
        operations=tuple(operations),
        warnings=governing_warnings(review, admission, is_refused),
        audit={"standing": standing.status} | ({"held": hold} if hold else {}) | protected,
        admission=admission,
    )
