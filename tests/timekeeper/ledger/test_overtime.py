"""Pods past their declared time: a real database and settler, an API server whose answers are told, and a
clock turned by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.leaving import PDB_429, Leaving
from tests.timekeeper.worlds import MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.settler.evictions.rounds import OvertimeRound
from timekeeper.store import fencing

ONE_DATABASE = "decisions and calls of the API server; no SQL of their own"

BUDGET = "gpuHours: 100\nreserve: declared\nrequireDuration: true\novertime: evict"


def late_pod() -> Json:
    """Bound at T0 for ten minutes and half a minute of grace."""
    noted = {"bursar.dev/held": "budget", "bursar.dev/declared": "600"}
    return gpu_pod("p", started_ms=T0, annotations=noted)


class Late(Leaving):
    """Such a pod, and who follows it."""

    def begin(self, budget: str) -> None:
        self.town.begin(("nodes", node()), ("configmaps", budgets(team_a=budget)), ("pods", late_pod()))
        self.evictor = OvertimeRound(self.context())

    def turn(self, ms: int) -> None:
        """Time passes; the pod runs on."""
        self.town.advance(ms)
        self.evictor.step()

    def told(self) -> list[tuple[str, str]]:
        return [(each.kind, each.reason) for each in self.decisions]


@pytest.fixture
def late(town: Town, tmp_path: Path) -> Iterator[Late]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Late(town, api, url, tmp_path)


WARNED, ENDED = ("warned", "OvertimeWarning"), ("evicted", "OvertimeEviction")


def test_a_pod_past_its_time_is_warned_and_after_its_grace_evicted(late: Late) -> None:
    late.begin(BUDGET)
    late.turn(10 * MINUTE - 1)
    assert late.told() == []

    late.turn(1)
    late.turn(29 * SECOND)
    assert (late.told(), late.api.evictions) == ([WARNED], [])
    late.turn(SECOND)

    assert late.told() == [WARNED, ENDED]
    assert late.asked() == ["p"]
    assert [each["reason"] for each in late.api.events] == ["OvertimeWarning", "OvertimeEviction"]
    (written,) = [body["status"]["conditions"][0] for _, body in late.api.patches]
    assert (written["type"], written["reason"]) == ("DisruptionTarget", "BursarOvertime")
    assert late.decisions[0].figures["message"] == (
        "The pod declared 600 s (activeDeadlineSeconds), which were over at 2026-11-20T10:10:00Z; it is "
        "evicted after 2026-11-20T10:10:30Z."
    )


def test_its_disruption_budget_is_respected_for_a_while_and_then_the_pod_is_deleted(late: Late) -> None:
    late.begin(BUDGET)
    late.api.refusals["p"] = 429, PDB_429
    late.turn(10 * MINUTE + 30 * SECOND)
    late.turn(9 * MINUTE)
    assert (late.told(), late.api.deletions) == ([WARNED], [])

    for _ in range(70):
        if not late.api.deletions:
            late.turn(MINUTE)

    assert late.told() == [WARNED, ENDED]
    assert late.api.deletions[0]["preconditions"] == {"uid": "uid-p"}


def test_only_the_newest_settler_evicts(late: Late) -> None:
    late.begin(BUDGET)
    late.town.resume()
    late.town.advance(11 * MINUTE)

    with pytest.raises(fencing.EpochOverError):
        late.evictor.step()
    assert late.asked() == []


@pytest.mark.parametrize(
    ("budget", "told"), [(BUDGET.replace("evict", "warn"), [WARNED]), (f"{BUDGET}\nmode: observe", [])]
)
def test_where_the_budget_does_not_say_so_it_is_only_warned(
    late: Late, budget: str, told: list[tuple[str, str]]
) -> None:
    """While one observes, a pod declares nothing."""
    late.begin(budget)
    for _ in range(20):
        late.turn(MINUTE)

    assert (late.told(), late.api.evictions) == (told, [])
