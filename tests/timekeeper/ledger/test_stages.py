"""A tick is a fold: the order in which pods were heard, and that of what derives from their sessions, changes
nothing of what it writes."""

from itertools import permutations
from random import Random

import pytest

from tests.timekeeper.bare import Life
from tests.timekeeper.ledger.test_metered import WHOLE
from tests.timekeeper.ledger.test_reservation_pods import at, fraction, reservation
from tests.timekeeper.ledger.test_reserved_cards import BOUND, reserved
from tests.timekeeper.ledger.test_static_pods import mirror
from tests.timekeeper.worlds import MINUTE, SECOND, T0, Json, budgets, gpu_pod, node
from timekeeper.settler.decide import decide

SETTINGS = budgets(_settings="weights: {A100: 2}", kai_resource_reservation="mode: meter")

FIRST = [
    gpu_pod("small", percent=10),
    gpu_pod("half", node="n2", percent=50),
    gpu_pod("whole", node="n3"),
    reserved(name="waits"),
    *(mirror(f"m{number}", name=f"web{number}", file=f"f{number}", at="whole") for number in range(3)),
    reservation(namespace="kai-resource-reservation"),
    at(fraction("quarter", "0.25"), T0),
    at(fraction("third", "0.3"), T0 + SECOND),
]
THEN = [
    gpu_pod("small", percent=10, started_ms=T0),
    gpu_pod("half", node="n2", percent=50, started_ms=T0, ended_ms=T0 + MINUTE),
    reserved(name="waits", node="n1", bound_ms=BOUND),
    mirror("m1", name="web1", file="f1", at="whole", ended_ms=T0 + MINUTE),
    at(fraction("quarter", "0.25"), T0, T0 + MINUTE),
    at(fraction("more", "0.2"), T0 + MINUTE),
]


class Folded(Life):
    def check(self, names: tuple[str, ...], now: int) -> None:
        """The totals have tests of their own."""


def lived(
    orders: tuple[list[Json], list[Json]], derived: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> Json:
    """All sessions and postings after two ticks that each heard many pods."""
    monkeypatch.setattr(decide, "DERIVED", derived)
    life = Folded()
    life.list_all("configmaps", [SETTINGS])
    life.list_all("nodes", [*(node(name, cards=4) for name in ("n1", "n2", "n3")), WHOLE])
    for pods in orders:
        life.now += 2 * MINUTE
        for pod in pods:
            life.hear("pods", pod)
        life.hear("pods", gpu_pod("whole", node="n3"), deleted=pods is orders[1])
        life.tick()
    return {"sessions": life.shelf.sessions, "postings": sorted(life.shelf.postings, key=repr)}


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_pods_and_of_what_derives_from_them_changes_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, derived = Random(seed), decide.DERIVED
    expected = lived((FIRST, THEN), derived, monkeypatch)

    for order in permutations(derived):
        shuffled = (random.sample(FIRST, len(FIRST)), random.sample(THEN, len(THEN)))
        assert lived(shuffled, order, monkeypatch) == expected
    assert any(":hold:" in uid for uid in expected["sessions"])
    assert any(":before:" in uid for uid in expected["sessions"])
