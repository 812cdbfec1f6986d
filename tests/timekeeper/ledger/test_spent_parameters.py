"""Which namespaces the policy on allocations keeps from GPUs. Real database and settler, a clock by hand."""

from collections.abc import Mapping

import pytest

from tests.timekeeper.worlds import HOUR, MINUTE, T0, Town, budgets, gpu_pod, node
from timekeeper.settler.spent_parameters import SpentParameters

ONE_DATABASE = "decisions about values; test_holding stores the same"

OF_GPUS = {"_drivers": "gpu.example.com"}


class Writer:
    """What is applied, by a settler's tick; ``problem``: of the next call."""

    def __init__(self, town: Town) -> None:
        self.applied: list[Mapping[str, str]] = []
        self.problem, self.seconds = "", 0.0
        settler = town.settler
        self.parameters = SpentParameters(
            self._apply,
            lambda: settler.ledger.statement_cache.statements.namespaces,  # type: ignore[union-attr]
            lambda: settler.ledger.history,
            lambda: ["gpu.example.com"],
            town.clock,
            lambda: self.seconds,
        )

    def _apply(self, data: Mapping[str, str]) -> str:
        self.applied.append(data)
        return self.problem

    def step(self) -> list[Mapping[str, str]]:
        """What one step applies."""
        before = len(self.applied)
        self.parameters.step()
        return self.applied[before:]


@pytest.mark.parametrize(
    ("entry", "is_kept"),
    [
        ("gpuHours: 1\nonExhausted: deny", True),
        ("gpuHours: 1\nonExhausted: hold", True),
        ("gpuHours: 1\nonExhausted: evict", True),
        ("gpuHours: 1", False),
        ("gpuHours: 9\nonExhausted: deny", False),
        ("gpuHours: 1\nonExhausted: deny\nmode: observe", False),
        ("gpuHours: 1\nonExhausted: deny\nprotect: {labels: {app: x}, cards: 1}", False),
    ],
)
def test_a_namespace_is_named_while_its_charges_have_used_a_budget_that_keeps_pods(
    town: Town, entry: str, is_kept: bool
) -> None:
    town.begin(
        ("nodes", node()), ("configmaps", budgets(team_a=entry)), ("pods", gpu_pod("p", started_ms=T0))
    )
    town.advance(2 * HOUR)

    assert Writer(town).step() == [OF_GPUS | ({"team-a": "spent"} if is_kept else {})]


def test_what_is_only_reserved_keeps_no_claim(town: Town) -> None:
    entry = budgets(team_a="gpuHours: 1\nonExhausted: deny")
    town.begin(("nodes", node()), ("configmaps", entry), ("pods", gpu_pod("p", started_ms=T0)))
    town.advance(55 * MINUTE)

    assert town.get("/v1/balances/team-a").get_json()["standing"] == "OVER_BUDGET"
    assert Writer(town).step() == [OF_GPUS]


def test_it_is_applied_when_it_changes_and_now_and_then(town: Town) -> None:
    entry = budgets(team_a="gpuHours: 1\nonExhausted: deny")
    town.begin(("nodes", node()), ("configmaps", entry), ("pods", gpu_pod("p", started_ms=T0)))
    writer = Writer(town)
    assert writer.step() == [OF_GPUS]
    assert writer.step() == []

    town.advance(2 * HOUR)
    assert writer.step() == [OF_GPUS | {"team-a": "spent"}]
    writer.seconds = 60
    assert writer.step() == [OF_GPUS | {"team-a": "spent"}]
    town.change("configmaps", budgets(team_a="gpuHours: 9\nonExhausted: deny"))
    town.tick()
    assert writer.step() == [OF_GPUS]
