"""What every step of a simulated cluster must keep."""

from collections import Counter
from dataclasses import dataclass

from tests.story.balances import GROUP
from tests.story.card_laws import CardLaws
from tests.story.law import Law
from tests.story.leaving_laws import LeavingLaws
from tests.story.pause_laws import PauseLaws
from tests.story.simulation import Simulation
from tests.story.time_laws import DeclaredLaws, EndingLaws
from tests.story.waiting_laws import WaitingLaws


class Laws:
    """All laws, over one simulation from its beginning on. ``kinds``: what it contained."""

    def __init__(self, simulation: Simulation) -> None:
        self.kinds: Counter[str] = Counter()
        self._balances = BalanceLaws(simulation, self.kinds)
        self._leaving = LeavingLaws(simulation, self.kinds)
        self._cards = CardLaws(simulation, self.kinds)
        self._pauses = PauseLaws(simulation, self.kinds)
        self._waiting = WaitingLaws(simulation, self.kinds, pauses=self._pauses)
        self._declared = DeclaredLaws(simulation, self.kinds)
        self._ending = EndingLaws(simulation, self.kinds)
        self._asked = 0  # calls that were looked at
        self._simulation = simulation
        self._of_calls = {
            "evictor": self._leaving.acted,
            "preempted": self._leaving.preempted,
            "overtime": self._ending.outlived,
            "idle": self._ending.idled,
        }
        simulation.tell = self._heard

    def _heard(self, what: str) -> None:
        if what == "ticked":
            self._balances.ticked()
            self._declared.ticked()
            self._pauses.ticked()
        elif what == "bound":
            self._cards.bound()
        elif what == "releaser":
            self._pauses.acted()
        elif what in self._of_calls:
            asked = self._simulation.server.asked
            new, self._asked = asked[self._asked :], len(asked)
            self._of_calls[what](new)
        elif what == "stepped":
            self._leaving.stepped()
            self._ending.stepped()
            self._waiting.stepped()


@dataclass
class BalanceLaws(Law):
    """``ticked`` follows each tick of the settler that was written."""

    def ticked(self) -> None:
        """Grant and charges of each account equal the oracle's."""
        it = self.simulation
        made = it.timekeeper.held_view.statements
        assert made is not None
        now_ms, of = it.timekeeper.held_view.at_ms, it.accounts
        stated = {**made.namespaces, **{GROUP + name: each for name, each in made.groups.items()}}
        for subject in it.in_force:
            granted = of.granted(subject, now_ms)
            mine = stated.get(subject)
            if granted is None or mine is None:
                assert mine is None or mine.balance.granted is None, subject
                continue
            self.kinds["balances"] += 1
            assert mine.balance.granted == granted, (subject, mine.balance.granted, granted)
            assert mine.balance.spent == of.spent(subject, now_ms, it.leases), subject
