"""What an audit finds: one line each, for people or for programs."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from timekeeper.accounts.usage import gpu_hours

# Times further ahead than this are no clock's that was ever set right, and was only turned back since.
SLACK_MS = 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference: what is stored, and what follows from the evidence. ``amount``: by how much too much is
    stored (below zero: too little), in milli-GPU x milliseconds; None where no amount is concerned."""

    subject: str
    what: str
    stored: str
    evidence: str
    amount: int | None = None

    def sentence(self) -> str:
        """One line."""
        line = f"{self.subject}: {self.what}: stored {self.stored}, by the evidence {self.evidence}"
        if self.amount is None:
            return line
        return f"{line}, difference {signed_hours(self.amount)} GPU-hours"

    def wire(self) -> dict[str, Any]:
        """The same for programs; ``gpuHours`` as decimal text."""
        return {
            "subject": self.subject,
            "what": self.what,
            "stored": self.stored,
            "evidence": self.evidence,
            "amount": self.amount,
            "gpuHours": None if self.amount is None else gpu_hours(self.amount),
        }


Tell = Callable[[Finding], None]


def signed_hours(amount: int) -> str:
    """GPU-hours with their sign."""
    return f"{'+' if amount > 0 else ''}{gpu_hours(amount)}"


def hours(amount: int) -> str:
    """GPU-hours with their unit."""
    return f"{gpu_hours(amount)} GPU-hours"


def moment(at_ms: int) -> str:
    """A time as people write it, to the millisecond; one that no calendar has as a bare number."""
    try:
        at = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of(from_ms: int, to_ms: int) -> str:
    """An interval; ``nothing`` where it is empty."""
    return f"{moment(from_ms)} to {moment(to_ms)}" if to_ms > from_ms else "nothing"
