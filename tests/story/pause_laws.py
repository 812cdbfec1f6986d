"""The law of releases that leave others their turn: decision 53, computed a second time."""

from dataclasses import dataclass

from tests.story.law import Law
from tests.story.simulation import STEP_MS

MANY = 50  # pods that wait for a first attempt: with more of them releases pause
MAX_CREDIT, COST = 300, 5  # a pause takes COST of the credit, each other step of the releaser adds 1


@dataclass
class PauseLaws(Law):
    """``ticked`` follows each tick that was written, ``acted`` each step of the releaser."""

    paused_ms: int = 0  # how long releases could pause, since the beginning
    # whether a held pod has been payable for so long that only a pause can keep it
    is_due: bool = False
    _untried: int = 0  # pods that wait for a first attempt, as of the tick
    _is_held: bool = False  # whether pods were held then
    _epoch: int = 0  # of the settler that counts the credit
    # A step without a release was a pause, or had nothing to release: bounds of what the credit can be.
    _least: int = MAX_CREDIT
    _most: int = MAX_CREDIT

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
        if is_many and not it.released and self._most >= COST:
            self.paused_ms += STEP_MS // it.size.sub_steps
            self.kinds["paused"] += self.is_due
            self._least = max(0, self._least - COST)
            self._most = self._most - COST if self.is_due else min(MAX_CREDIT, self._most + 1)
            return
        if is_many and it.released:
            assert self._least < COST, "released before others"
            self.kinds["released beside others"] += 1
            self._most = min(self._most, COST - 1)
        self._least, self._most = (min(MAX_CREDIT, each + 1) for each in (self._least, self._most))

    def _renew(self) -> None:
        """Another settler has a credit of its own, and sees no pod before its first tick."""
        epoch = self.simulation.timekeeper.database.epoch
        if self._epoch != epoch:
            self._epoch, self._untried = epoch, 0
            self._least = self._most = MAX_CREDIT
