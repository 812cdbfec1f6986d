"""Clocks that the test advances."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Milliseconds since 1970."""

    at_ms: int

    def __call__(self) -> int:
        return self.at_ms

    def turn(self, ms: int) -> int:
        """Advance it, and return the time."""
        self.at_ms += ms
        return self.at_ms


@dataclass
class SecondsClock:
    """Monotonic seconds."""

    s: float = 0.0

    def __call__(self) -> float:
        return self.s
