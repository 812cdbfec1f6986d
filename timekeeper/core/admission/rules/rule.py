"""A rule of admission."""

from dataclasses import dataclass
from typing import Literal

from timekeeper.core.budgets.rule_ids import FIXED

RuleMode = Literal["enforce", "warn", "off"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``instead``: what happens in mode ``warn``, as the warning for a governed pod says."""

    id: str
    refuses: str
    why: str
    default: RuleMode = "enforce"
    instead: str = "admitted"

    @property
    def fixed(self) -> bool:
        """Whether budgets cannot set the rule's mode."""
        return self.id in FIXED
