"""Whatever happens to a ledger, its audit agrees with it, before and after folding: see machine.py."""

import pytest
from hypothesis.stateful import invariant

from tests.timekeeper.ledger.test_machine import SEED, Url, fresh, lived  # noqa: F401 -- a fixture
from tests.timekeeper.machine import Machine
from tests.timekeeper.past import differences
from tests.timekeeper.worlds import DAY, SECOND, Town
from timekeeper.store.retention import roll_up_all

pytestmark = pytest.mark.untraced


HISTORIES = {"sqlite": 6, "postgresql": 2}


class Audited(Machine):
    """Whatever happens, the audit agrees; at the end all that ended is folded, and it still does."""

    town: Town

    @invariant()
    def the_audit_finds_nothing(self) -> None:
        if hasattr(self, "town") and not self.away:
            assert not (wrong := differences(self.town)), wrong

    def settles(self) -> None:
        super().settles()
        assert not (wrong := differences(self.town)), wrong
        self.town.clock.turn(DAY)
        roll_up_all(self.town.store, self.town.clock, SECOND, batch=2)
        assert not (wrong := differences(self.town)), wrong


@pytest.mark.parametrize("fresh", HISTORIES, indirect=True)
def test_after_any_history_nothing_differs_before_and_after_folding(
    fresh: Url,  # noqa: F811
    request: pytest.FixtureRequest,
) -> None:
    lived(fresh, HISTORIES[request.node.callspec.params["fresh"]], SEED + 1, kind=Audited)
