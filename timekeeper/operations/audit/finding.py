"""Differences that an audit finds, as lines for people or programs."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from timekeeper.accounts.usage import gpu_hours

# No clock that was ever right, and was only set back since, shows a time further ahead than this.
SLACK_MS = 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference: the stored value and the value by the evidence. ``amount``: how much too much is stored
    (negative: too little), in milli-GPU x milliseconds; None if no amount is concerned."""

    subject: str
    what: str
    stored: str
    evidence: str
    amount: int | None = None

    def sentence(self) -> str:
        """One line for people."""
        line = f"{self.subject}: {self.what}: stored {self.stored}, by the evidence {self.evidence}"
        if self.amount is None:
            return line
        return f"{line}, difference {signed_hours(self.amount)} GPU-hours"

    def wire(self) -> dict[str, Any]:
        """The same for programs; ``gpuHours`` is decimal text."""
        return {
            "subject": self.subject,
            "what": self.what,
            "stored": self.stored,
            "evidence": self.evidence,
            "amount": self.amount,
            "gpuHours": None if self.amount is None else gpu_hours(self.amount),
        }


Tell = Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class NotCompared:
    """What is listed and not compared. ``name``: with its namespace."""

    kind: Literal["pod", "claim"]
    uid: str
    name: str
    reason: str

    def sentence(self) -> str:
        """One line for people."""
        return f"{self.kind} {self.uid} ({self.name}): not compared: {self.reason}"

    def wire(self) -> dict[str, Any]:
        """The same for programs."""
        return {"uid": self.uid, self.kind: self.name, "reason": self.reason}


def signed_hours(amount: int) -> str:
    """GPU-hours with their sign."""
    return f"{'+' if amount > 0 else ''}{gpu_hours(amount)}"


def hours(amount: int) -> str:
    """GPU-hours with their unit."""
    return f"{gpu_hours(amount)} GPU-hours"


def moment(at_ms: int) -> str:
    """A time for people, to the millisecond; a time outside the calendar is a bare number."""
    try:
        at = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of(from_ms: int, to_ms: int) -> str:
    """An interval; ``nothing`` where it is empty."""
    return f"{moment(from_ms)} to {moment(to_ms)}" if to_ms > from_ms else "nothing"
