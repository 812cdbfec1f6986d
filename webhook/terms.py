"""What the webhook goes by: a namespace's standing, and what the cluster's operator has settled."""

from dataclasses import dataclass
from typing import Literal

from timekeeper.core.wire import StandingWord

Mode = Literal["enforce", "observe"]
UnknownStanding = Literal["inBudget", "overBudget"]

WORDS: tuple[StandingWord, ...] = ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A priority class; ``value`` None where nobody has told it yet."""

    name: str
    value: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A namespace's standing at this moment, with what a warning tells of it.

    ``ratio_milli`` and ``warn_at_milli``: thousandths of the grant that are spent, and from which on users
    are warned; ``by_estimate``: over budget only by what this worker has itself admitted since the last
    table.
    """

    word: StandingWord
    ratio_milli: int | None = None
    warn_at_milli: int | None = None
    by_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What the injected container needs: its image, where it reports to, and the PEM text of the CA it
    trusts."""

    image: str
    timekeeper_url: str
    ca: str


@dataclass(frozen=True, slots=True)
class Terms:
    """How pods are governed now.

    ``known`` is False while these are this process's flags alone, because no table of standings has been
    heard. ``sidecar`` None injects nothing; an empty ``runtime_class`` sets none.
    """

    known: bool
    mode: Mode
    scheduler_name: str
    in_budget: PriorityClass
    over_budget: PriorityClass
    unknown_standing: UnknownStanding
    max_grace_s: int
    runtime_class: str
    sidecar: Sidecar | None

    def class_of(self, word: StandingWord) -> PriorityClass:
        """The class that a pod of this standing gets; while observing nobody is demoted."""
        demoted = word == "OVER_BUDGET" or (word == "UNKNOWN" and self.unknown_standing == "overBudget")
        return self.over_budget if demoted and self.mode == "enforce" else self.in_budget
