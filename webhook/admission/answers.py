"""How violations are answered: each refuses or warns, by the mode of its rule; and their causes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from timekeeper.core.admission.pods import annotations_of
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.modes import rule_modes, split_by_mode
from timekeeper.core.admission.rules.size import TOO_MANY_PARTS
from timekeeper.core.request.request import containers
from timekeeper.core.request.zeros import asked_limits
from timekeeper.core.violation import TRY_AGAIN, Violation, message, shown
from webhook.admission.warnings import violation_warnings, within_limits
from webhook.wire.pod_review import AdmissionAnswer, PodReview

MAX_SHOWN = 50  # violations in one refusal; answers stay small

# of LimitRanger: "LimitRanger plugin set: cpu, nvidia.com/gpu request for container main; ..."
_LIMIT_RANGER = "kubernetes.io/limit-ranger"
_FILLED_IN = re.compile(r"([^;]+) limit for (?:init )?container ([^;]+)")


def answer(
    good: AdmissionAnswer, violations: Sequence[Violation], policy: AdmissionPolicy, exempt: bool
) -> AdmissionAnswer:
    """A refusal where a violation refuses, else ``good`` with a warning for each violation that warns."""
    refusing, warned = split_by_mode(violations, policy, exempt)
    if refusing:
        return refusal(refusing, warned, policy, exempt)
    if not warned:
        return good
    governed = good.admission is not None
    warnings = violation_warnings(warned, policy, exempt, governed=governed)
    return replace(
        good,
        verdict="observed" if policy.mode == "observe" and not governed else good.verdict,
        warnings=within_limits((*good.warnings, *warnings)),
        rules=rule_modes(warned, policy, exempt),
    )


def crowded(review: PodReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Of a pod with too many parts: that alone is said, where the policy `bursar-sizes` says it."""
    what = review.operation, review.subresource
    is_judged = what in (("CREATE", ""), ("UPDATE", "ephemeralcontainers")) and policy.mode != "meter"
    found = (TOO_MANY_PARTS,) if is_judged else ()
    return answer(AdmissionAnswer("passed"), found, policy, is_exempt(review, policy))


def refusal(
    refusing: Sequence[Violation], warned: Sequence[Violation], policy: AdmissionPolicy, exempt: bool
) -> AdmissionAnswer:
    """The refusal that lists every violation that refuses (at least one), with a warning for each that only
    warns."""
    return AdmissionAnswer(
        "refused",
        refusal=refusal_text(refusing),
        warnings=violation_warnings(warned, policy, exempt, governed=False),
        rules=rule_modes((*refusing, *warned), policy, exempt),
    )


def refusal_text(refusing: Sequence[Violation]) -> str:
    """The first MAX_SHOWN violations, and the number of the others."""
    left = len(refusing) - MAX_SHOWN
    return message(refusing[:MAX_SHOWN]) + (f"\n  and {left} more" if left > 0 else "")


def is_exempt(review: PodReview, policy: AdmissionPolicy) -> bool:
    """Whether the requesting user, or one of their groups, is on the policy's list of exempt ones."""
    return bool(policy.exempt) and (
        review.user in policy.exempt or not policy.exempt.isdisjoint(review.groups)
    )


def with_causes(answer: AdmissionAnswer, review: PodReview) -> AdmissionAnswer:
    """The answer to a new pod, with what a LimitRange requested for it first. A user may forge the mark that
    says so, so only sentences rest on it. ``answer`` refuses the pod, or speaks of its GPUs."""
    mark = annotations_of(review.pod).get(_LIMIT_RANGER, "") if answer.refusal or answer.admission else ""
    causes = within_limits(_of_limit_ranges(review, mark)) if mark else ()
    if answer.refusal and causes:
        begin = TRY_AGAIN if answer.refusal.startswith(TRY_AGAIN) else ""
        return replace(answer, refusal=begin + "\n".join((*causes, answer.refusal.removeprefix(begin))))
    return replace(answer, warnings=within_limits((*causes, *answer.warnings))) if causes else answer


def _of_limit_ranges(review: PodReview, mark: str) -> Iterator[str]:
    """Of each device that a LimitRange requests for a container which does not name it."""
    filled_in = {
        (container, resource)
        for resources, container in _FILLED_IN.findall(mark.partition(":")[2])
        for resource in resources.strip().split(", ")
        if "/" in resource
    }
    for container in containers(review.pod):
        for resource, amount in asked_limits(container.raw).items():
            if (container.name, resource) in filled_in:
                yield (
                    f"{container.path}.resources.limits[{resource}]: a LimitRange of namespace"
                    f" {review.namespace} filled in {shown(str(amount))}; for a container without devices"
                    f' write {resource}: "0"'
                )
