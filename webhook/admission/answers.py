"""How violations are answered: each refuses or warns, by the mode of its rule."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.modes import rule_modes, split_by_mode
from timekeeper.core.violation import Violation, message
from webhook.admission.warnings import violation_warnings, within_limits
from webhook.wire.pod_review import AdmissionAnswer, PodReview

MAX_SHOWN = 50  # violations in one refusal; answers stay small


def answer(
    good: AdmissionAnswer, violations: Sequence[Violation], policy: AdmissionPolicy, exempt: bool
) -> AdmissionAnswer:
    """A refusal where a violation refuses, else ``good`` with a warning for each violation that warns."""
    refusing, warned = split_by_mode(violations, policy, exempt)
    if refusing:
        return refusal(violations, policy, exempt)
    if not warned:
        return good
    governed = good.request is not None
    warnings = violation_warnings(warned, policy, exempt, governed=governed)
    return replace(
        good,
        verdict="observed" if policy.mode == "observe" and not governed else good.verdict,
        warnings=within_limits((*good.warnings, *warnings)),
        rules=rule_modes(warned, policy, exempt),
    )


def refusal(
    violations: Iterable[Violation], policy: AdmissionPolicy, exempt: bool = False
) -> AdmissionAnswer:
    """The refusal that lists every violation that refuses (at least one), with a warning for each that only
    warns."""
    refusing, warned = split_by_mode(violations, policy, exempt)
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
