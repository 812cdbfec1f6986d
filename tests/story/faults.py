"""What does not work for a while in a simulated cluster."""

from dataclasses import dataclass


@dataclass
class Faults:
    """Until when each lasts."""

    api_ms: int = 0
    polls_ms: int = 0
    database_ms: int = 0

    def last(self, now_ms: int) -> bool:
        """Whether any lasts now."""
        return now_ms < max(self.api_ms, self.polls_ms, self.database_ms)
