"""The law of releases that leave room for others: decision 53, computed a second time."""

from dataclasses import dataclass

from tests.story.law import Law
from tests.story.simulation import STEP_MS

MANY = 50  # pods that wait for a first attempt: with more of them releases pause
MOST_CREDIT, COST = 300, 5  # a pause takes COST of the credit, each other step of the releaser adds 1


@dataclass
class PauseLaws(Law):
    """``ticked`` follows each tick that was written, ``acted`` each step of the releaser."""

    paused_ms: int = 0  # how long releases could pause, since the beginning
    _untried: int = 0  # pods that wait for a first attempt, as of the tick
    _is_held: bool = False  # whether pods were held then
    _epoch: int = 0  # of the settler that counts the credit
    _credit: int = MOST_CREDIT

    def ticked(self) -> None:
        """The releaser sees the pods as they are now."""
        self._renew()
        pods = self.simulation.server.pods.values()
        self._untried = sum(pod.waits and not pod.tried for pod in pods)
        self._is_held = any(pod.gated and not pod.is_leaving for pod in pods)
        assert self.simulation.timekeeper.held_view.untried == self._untried

    def acted(self) -> None:
        """While many pods wait for their first attempt, others go first, as long as the credit lasts: it
        released none."""
        it = self.simulation
        if not it.was_killed:
            self._renew()
        is_many = self._untried > MANY and self._is_held
        if is_many and self._credit >= COST:
            self._credit -= COST
            self.paused_ms += STEP_MS // it.size.sub_steps
            self.kinds["paused"] += 1
            assert not it.released, "released before others"
        else:
            self._credit = min(MOST_CREDIT, self._credit + 1)
            self.kinds["released beside others"] += is_many and it.released > 0

    def _renew(self) -> None:
        """Another settler has a credit of its own, and sees no pod before its first tick."""
        epoch = self.simulation.timekeeper.database.epoch
        if self._epoch != epoch:
            self._epoch, self._credit, self._untried = epoch, MOST_CREDIT, 0
