"""In which mode a rule is: the budget's, the policy's, or its default; and which violations refuse."""

from collections.abc import Iterable
from typing import Literal

from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.catalogue import CATALOGUE, RuleMode
from timekeeper.core.violation import Violation

EffectiveMode = Literal["enforce", "warn", "off", "observe", "exempt"]


def mode_of(rule: str, policy: AdmissionPolicy) -> RuleMode:
    """The rule's mode under this policy; an unknown rule is enforced."""
    if is_fixed(rule):
        return "enforce"
    match policy.rules.get(rule):
        case "enforce" | "warn" | "off" as mode:
            return mode
    return CATALOGUE[rule].default


def effective_mode(rule: str, policy: AdmissionPolicy, exempt: bool = False) -> EffectiveMode:
    """The rule's mode, except that an enforced rule only warns in observe mode and for an exempt user. Fixed
    rules have no exemption."""
    mode = mode_of(rule, policy)
    if mode != "enforce":
        return mode
    if exempt and not is_fixed(rule):
        return "exempt"
    return "observe" if policy.mode == "observe" else "enforce"


def is_fixed(rule: str) -> bool:
    """Whether budgets cannot set the rule's mode; true for a rule that is not in the catalogue."""
    return rule not in CATALOGUE or CATALOGUE[rule].fixed


def split_by_mode(
    violations: Iterable[Violation], policy: AdmissionPolicy, exempt: bool = False
) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
    """The violations that refuse, and those that only warn; a rule that is off is in neither.

    In observe mode none refuses. For an exempt user only rules that cannot be relaxed refuse.
    """
    refusing, warned = [], []
    for violation in violations:
        mode = effective_mode(violation.rule, policy, exempt)
        if mode == "enforce":
            refusing.append(violation)
        elif mode != "off":
            warned.append(violation)
    return tuple(refusing), tuple(warned)


def would_refuse(violations: Iterable[Violation], policy: AdmissionPolicy, exempt: bool) -> bool:
    """Whether a violation refuses nothing only because the namespace is observed."""
    if policy.mode != "observe":
        return False
    return any(effective_mode(each.rule, policy, exempt) == "observe" for each in violations)


def rule_modes(
    violations: Iterable[Violation], policy: AdmissionPolicy, exempt: bool
) -> tuple[tuple[str, str], ...]:
    """Each violated rule once, with its effective mode."""
    return tuple(dict.fromkeys((each.rule, effective_mode(each.rule, policy, exempt)) for each in violations))
