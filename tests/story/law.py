"""A law that is checked at every step of a simulated cluster."""

from collections import Counter
from dataclasses import dataclass, field

from tests.story.simulation import Simulation


@dataclass
class Law:
    """``kinds``: what the run contained, counted by word."""

    simulation: Simulation
    kinds: Counter[str]
    _since: dict[tuple[str, str], int] = field(default_factory=dict)  # law and subject -> since when

    def lasts(self, law: str, key: str, is_so: bool) -> int:
        """For how long it has been so, in milliseconds; 0: it is not."""
        if not is_so:
            self._since.pop((law, key), None)
            return 0
        now_ms = self.simulation.clock()
        return now_ms - self._since.setdefault((law, key), now_ms)
