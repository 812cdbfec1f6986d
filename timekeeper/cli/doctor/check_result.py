"""What a check found."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``subject``: what was looked at; ``command``: what mends it or shows more; "": nothing to do."""

    level: Level
    subject: str
    sentence: str
    command: str = ""
