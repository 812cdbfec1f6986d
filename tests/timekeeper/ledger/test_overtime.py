"""Pods past their declared time: a real database and settler, an API server whose answers are told, and a
clock turned by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.events import UnqueuedRecorder
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.ledger.test_evicting import PDB_429
from tests.timekeeper.worlds import MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.core.decisions import Decision
from timekeeper.runtime.connect import connect
from timekeeper.runtime.log import log
from timekeeper.settler.evictions.calls import EvictorContext, view_of
from timekeeper.settler.evictions.rounds import OvertimeRound
from timekeeper.settler.process import REPORTER

ONE_DATABASE = "decisions and calls of the API server; no SQL of their own"

BUDGET = "gpuHours: 100\nreserve: declared\nrequireDuration: true\novertime: evict"


def late_pod() -> Json:
    """Bound at T0 for ten minutes and half a minute of grace."""
    noted = {"bursar.dev/held": "budget", "bursar.dev/declared": "600"}
    return gpu_pod("p", started_ms=T0, annotations=noted)


class Late:
    """Such a pod, and who follows it."""

    def __init__(self, town: Town, api: FakeApiServer, url: str, folder: Path, budget: str) -> None:
        self.town, self.api, self.decisions = town, api, list[Decision]()
        town.begin(("nodes", node()), ("configmaps", budgets(team_a=budget)), ("pods", late_pod()))
        server = connect(kubeconfig(folder, url))
        events = UnqueuedRecorder(server, REPORTER, town.settler.epoch.holder, town.clock, log)
        shared = (town.store, town.settler.epoch, server, events, view_of(town.settler), town.clock)
        self.evictor = OvertimeRound(EvictorContext(*shared, town.clock, self.decisions.append))

    def turn(self, ms: int) -> None:
        """Time passes; the pod runs on."""
        self.town.advance(ms)
        self.evictor.step()

    def told(self) -> list[tuple[str, str]]:
        return [(each.kind, each.reason) for each in self.decisions]


Begin = Callable[[str], Late]


@pytest.fixture
def late(town: Town, tmp_path: Path) -> object:
    api = FakeApiServer()
    with serving(api) as url:
        yield lambda budget: Late(town, api, url, tmp_path, budget)


WARNED, ENDED = ("warned", "OvertimeWarning"), ("evicted", "OvertimeEviction")


def test_a_pod_past_its_time_is_warned_and_after_its_grace_evicted(late: Begin) -> None:
    pod = late(BUDGET)
    pod.turn(10 * MINUTE - 1)
    assert pod.told() == []

    pod.turn(1)
    pod.turn(29 * SECOND)
    assert (pod.told(), pod.api.evictions) == ([WARNED], [])
    pod.turn(SECOND)

    assert pod.told() == [WARNED, ENDED]
    assert [each["metadata"]["name"] for each in pod.api.evictions] == ["p"]
    assert [each["reason"] for each in pod.api.events] == ["OvertimeWarning", "OvertimeEviction"]
    (written,) = [body["status"]["conditions"][0] for _, body in pod.api.patches]
    assert (written["type"], written["reason"]) == ("DisruptionTarget", "BursarOvertime")
    assert pod.decisions[0].figures["message"] == (
        "The pod declared 600 s (activeDeadlineSeconds), which were over at 2026-11-20T10:10:00Z; it is "
        "evicted after 2026-11-20T10:10:30Z."
    )


def test_its_disruption_budget_is_respected_for_a_while_and_then_the_pod_is_deleted(late: Begin) -> None:
    pod = late(BUDGET)
    pod.api.refusals["p"] = 429, PDB_429
    pod.turn(10 * MINUTE + 30 * SECOND)
    pod.turn(9 * MINUTE)
    assert (pod.told(), pod.api.deletions) == ([WARNED], [])

    for _ in range(70):
        if not pod.api.deletions:
            pod.turn(MINUTE)

    assert pod.told() == [WARNED, ENDED]
    assert pod.api.deletions[0]["preconditions"] == {"uid": "uid-p"}


def test_it_is_deleted_also_where_the_condition_is_refused_for_good(late: Begin) -> None:
    pod = late(BUDGET)
    pod.api.refusals["p"] = 429, PDB_429
    pod.api.patch_answer = 403
    for _ in range(80):
        if not pod.api.deletions:
            pod.turn(MINUTE)

    assert pod.told() == [WARNED, ENDED]
    assert pod.api.deletions[0]["preconditions"] == {"uid": "uid-p"}


def test_a_condition_that_cannot_be_written_for_now_counts_as_no_eviction(
    late: Begin, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = late(BUDGET)
    pod.api.refusals["p"] = 429, PDB_429
    pod.api.patch_answer = 500
    for _ in range(80):
        pod.turn(MINUTE)
    lines = capfd.readouterr().err.splitlines()
    results = [line.partition("result=")[2].split()[0] for line in lines if "overtime-eviction" in line]

    assert pod.api.deletions == []
    assert set(results) == {"protected", "refused"}


@pytest.mark.parametrize(
    ("budget", "told"), [(BUDGET.replace("evict", "warn"), [WARNED]), (f"{BUDGET}\nmode: observe", [])]
)
def test_where_the_budget_does_not_say_so_it_is_only_warned(
    late: Begin, budget: str, told: list[tuple[str, str]]
) -> None:
    """While one observes, a pod declares nothing."""
    pod = late(budget)
    for _ in range(20):
        pod.turn(MINUTE)

    assert (pod.told(), pod.api.evictions) == (told, [])
