"""In which mode a rule is: the budget's, the policy's, or its default."""

from typing import Literal

from webhook.policy import AdmissionPolicy
from webhook.rules.catalogue import CATALOGUE
from webhook.rules.rule import RuleMode

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
