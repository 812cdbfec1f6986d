"""Reviews of pods at /mutate, which refuses or governs.

Each call decides everything anew from the pod as its user wrote it (`without_marks`), and changes what the
pod has. So a second call for one pod, which the API server makes after other webhooks changed it, a copy with
marks of another pod, and an export are governed as a pod of their template is (docs/decisions/0123).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from timekeeper.core.admission.admission import Admission, admission_of, sidecar_obstacle
from timekeeper.core.admission.json_patch import Operation, merged, patched
from timekeeper.core.admission.mutation.govern import gang_gate, govern
from timekeeper.core.admission.mutation.sidecar import find_sidecar, is_ours
from timekeeper.core.admission.mutation.visible_devices import hide_cards
from timekeeper.core.admission.mutation.whole_cards import in_bursars_words, in_the_plugins_words
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.rules.exhausted import budget_violations
from timekeeper.core.admission.rules.forged import (
    as_written,
    forged_in,
    forgery_violations,
    is_export,
    without_marks,
    without_sidecar_if_name_taken,
)
from timekeeper.core.admission.rules.modes import split_by_mode, would_refuse
from timekeeper.core.admission.rules.pod_rules import pod_violations
from timekeeper.core.dialects.others.claims import record_of_none
from timekeeper.core.gangs import group_of, waits_for_gang
from timekeeper.core.json_values import Json
from timekeeper.core.kube.static_pods import is_own_mirror
from timekeeper.core.request.request import ParsedRequest
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation
from webhook.admission.answers import answer, crowded, is_exempt, with_causes
from webhook.admission.warnings import (
    CHARGED_AS_ASSUMED,
    STATIC_POD,
    UNMETERED,
    WHOLE_CARDS,
    governing_warnings,
    marks_removed,
    within_limits,
)
from webhook.wire.pod_review import AdmissionAnswer, PodReview

NOTHING_TO_DO = AdmissionAnswer("passed")
UNREADABLE = AdmissionAnswer("passed", warnings=(UNMETERED,))
ASSUMED = AdmissionAnswer("passed", warnings=(CHARGED_AS_ASSUMED,))
MIRROR = AdmissionAnswer("passed", warnings=(STATIC_POD,))

StandingOf = Callable[[GPURequest], Standing]


def mutate(review: PodReview, standing_of: StandingOf, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Refuses with every violation, or gives the patch that governs the pod; pods without a request pass.

    ``standing_of`` is called for the pod's request, and only where the pod is about to be governed.
    """
    if review.is_crowded:
        return crowded(review, policy)
    return with_causes(_mutate(review, standing_of, policy), review)


def _mutate(review: PodReview, standing_of: StandingOf, policy: AdmissionPolicy) -> AdmissionAnswer:
    enforcing = policy.mode == "enforce"
    if review.operation == "UPDATE" and review.subresource == "ephemeralcontainers":
        operations = hide_cards(review.pod, review.old) if enforcing else ()
        return AdmissionAnswer("governed", operations=operations) if operations else NOTHING_TO_DO
    if review.operation != "CREATE" or review.subresource or policy.mode == "meter":
        return NOTHING_TO_DO
    if is_own_mirror(review.pod, review.user, review.groups):  # admitted as it is, for the pod runs anyway
        parsed = policy.parsed(review.pod, review.namespace)
        good = MIRROR if parsed.request is not None or parsed.violations else NOTHING_TO_DO
        return answer(good, (*forgery_violations(review.pod, None),), policy, is_exempt(review, policy))
    plain = without_marks(review.pod, policy)
    parsed = policy.parsed(plain, review.namespace)
    if enforcing and (first := in_bursars_words(plain, parsed.request, policy)):
        return _noted(_after(review, first, standing_of, policy), WHOLE_CARDS)
    if enforcing and (first := in_the_plugins_words(plain, parsed.request, policy)):
        return _after(review, first, standing_of, policy)
    present = find_sidecar(plain) if enforcing and parsed.request else None
    # what it is left out for came after the first call
    if present and is_ours(present[1]) and sidecar_obstacle(plain, policy) is not None:
        return _after(review, as_written(review.pod, policy), standing_of, policy)
    violations = pod_violations(plain, parsed, policy)
    forged = forged_in(review.pod, plain, parsed.request, violations)
    is_exported = is_export(review.pod, policy)
    if enforcing and (forged or is_exported):
        answered = _after(review, as_written(review.pod, policy), standing_of, policy)
    else:
        others = [violation for violation in violations if violation not in forged] if forged else violations
        answered = _judged(review, plain, parsed, others, standing_of, policy)
        if not forged:
            return answered
    node = ["spec.nodeName"] if is_exported else []
    paths = [*(violation.path for violation in forged), *node]
    rules = ((violation.rule, "warn") for violation in forged)
    return _noted(answered, marks_removed(paths, not enforcing), *rules)


def _judged(
    review: PodReview,
    plain: Json,
    parsed: ParsedRequest,
    violations: Sequence[Violation],
    standing_of: StandingOf,
    policy: AdmissionPolicy,
) -> AdmissionAnswer:
    """``plain``: the pod as its user wrote it."""
    exempt = is_exempt(review, policy)
    if parsed.request is None or split_by_mode(violations, policy, exempt)[0]:
        unread = UNREADABLE if policy.mode == "enforce" else ASSUMED
        good = unread if parsed.violations else _passed(review, policy)
        return answer(good, violations, policy, exempt)
    standing = standing_of(parsed.request)
    governing = without_sidecar_if_name_taken(violations, policy)
    admission = admission_of(plain, parsed.request, standing, governing)
    if parsed.request.asks:  # else it may turn out to ask for no GPU
        violations = (*violations, *budget_violations(review.namespace, standing, parsed.request))
    good = _governed(review, admission, would_refuse(violations, policy, exempt))
    return answer(good, violations, policy, exempt)


def _after(
    review: PodReview, first: Sequence[Operation], standing_of: StandingOf, policy: AdmissionPolicy
) -> AdmissionAnswer:
    """The answer to the pod that the first operations make, with them."""
    answered = _mutate(replace(review, pod=patched(review.pod, first)), standing_of, policy)
    return replace(answered, operations=(*first, *answered.operations))


def _noted(answered: AdmissionAnswer, warning: str, *rules: tuple[str, str]) -> AdmissionAnswer:
    """The answer with one warning more; a refusal as it is, without a patch."""
    if answered.refusal:
        return replace(answered, operations=())
    rules = (*answered.rules, *dict.fromkeys(rules))
    return replace(answered, warnings=within_limits((*answered.warnings, warning)), rules=rules)


def _passed(review: PodReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Of a pod without a request: if it has claims, it is recorded that they are of no GPUs; if it waits for
    a gang, it has the gang's gate."""
    if policy.mode != "enforce":
        return NOTHING_TO_DO
    operations = merged(review.pod["metadata"], "/metadata", "annotations", record_of_none(review.pod))
    if policy.places and waits_for_gang(review.pod):
        operations += gang_gate(review.pod, group_of(review.pod))
    return replace(NOTHING_TO_DO, operations=tuple(operations)) if operations else NOTHING_TO_DO


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
