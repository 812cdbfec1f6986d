"""Idle pods: reports of agents, budgets and pods in a real database and settler, an API server whose answers
are told, and a clock turned by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.events import UnqueuedRecorder
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.ledger.test_evicting import PDB_429
from tests.timekeeper.worlds import (
    MINUTE,
    T0,
    Json,
    Town,
    agent_status,
    budgets,
    gpu_pod,
    node,
    token,
)
from timekeeper.core.decisions import Decision
from timekeeper.runtime.connect import connect
from timekeeper.runtime.log import log
from timekeeper.settler.evictions.calls import EvictorContext, view_of
from timekeeper.settler.evictions.rounds import IdleRound
from timekeeper.settler.process import REPORTER

ONE_DATABASE = (
    "decisions and calls of the API server; the columns that they need are written on both elsewhere"
)

UNTIL, RECLAIMABLE = "bursar.dev/idle-until", "bursar.dev/reclaimable"
SETTINGS = "idleAfter: 10m\nidleGrace: 5m\nidleBelow: 0.05"
BUDGET = "gpuHours: 100"


class Resting:
    """A pod with a whole card, whose node's agent reports its use each minute; and who follows it."""

    def __init__(self, town: Town, api: FakeApiServer, url: str, folder: Path) -> None:
        self.town, self.api = town, api
        self._server = connect(kubeconfig(folder, url))
        town.reviews.tokens[token("agent-n1")] = agent_status("n1")
        self.decisions: list[Decision] = []
        self._sequence = 0

    def begin(self, **entries: str) -> None:
        entries = {"_settings": f"idle: reclaim\n{SETTINGS}", "team_a": BUDGET} | entries
        pod = gpu_pod("p", started_ms=T0)
        self.town.begin(("nodes", node()), ("configmaps", budgets(**entries)), ("pods", pod))
        self.new_evictor()

    def new_evictor(self) -> None:
        """Of a process that has just begun to settle."""
        town, settler = self.town, self.town.settler
        events = UnqueuedRecorder(self._server, REPORTER, settler.epoch.holder, town.clock, log)
        shared = (town.store, settler.epoch, self._server, events, view_of(settler), town.clock)
        self.evictor = IdleRound(EvictorContext(*shared, town.clock, self.decisions.append))

    def turn(self, minutes: int, utilisation: int | None = 0, reports: bool = True) -> list[str]:
        """Minutes with this use; the pods that were evicted meanwhile."""
        before = len(self.api.evictions)
        for _ in range(minutes):
            self.town.clock.turn(MINUTE)
            if reports:
                self._report(utilisation)
            self.town.tick()
            patched = len(self.api.patches)
            self.evictor.step()
            for _, body in self.api.patches[patched:]:
                self._apply(body)
        return [each["metadata"]["name"] for each in self.api.evictions[before:]]

    def noted(self) -> dict[str, str]:
        """What the pod's annotations say of its idleness."""
        (pod,) = self.town.objects["pods"].values()
        annotations = pod["metadata"]["annotations"]
        return {key: annotations[key] for key in (UNTIL, RECLAIMABLE) if key in annotations}

    def restart(self) -> None:
        self.town.restart()
        self.town.tick()
        self.new_evictor()

    def events(self) -> list[str]:
        return [each["reason"] for each in self.api.events]

    def _report(self, utilisation: int | None) -> None:
        self._sequence += 1
        card = {"uuid": "GPU-0", "utilisation": utilisation, "memory_mib": 100}
        use = {"age_ms": 0, "pods": [{"uid": "uid-p", "cards": [card]}], "cards": []}
        body = {"version": 1, "boot": "run", "sequence": self._sequence, "uses": [use]}
        assert self.town.post("/v1/nodeusage", body, token("agent-n1")).status_code == 200

    def _apply(self, body: Json) -> None:
        (pod,) = self.town.objects["pods"].values()
        merged = pod["metadata"]["annotations"] | body["metadata"].get("annotations", {})
        pod["metadata"]["annotations"] = {key: text for key, text in merged.items() if text is not None}
        self.town.hear("pods", pod)
        self.town.tick()


@pytest.fixture
def resting(town: Town, tmp_path: Path) -> Iterator[Resting]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Resting(town, api, url, tmp_path)


def test_a_pod_that_does_not_use_its_card_is_warned_and_then_reclaimable_until_it_does(
    resting: Resting,
) -> None:
    """Also across a restart of the settler; the decisions say since when it is idle."""
    resting.begin()
    resting.turn(10)
    assert resting.noted() == {}
    resting.turn(1)
    assert resting.noted() == {UNTIL: "2026-11-20T10:16:00Z"}

    resting.restart()
    resting.turn(4)
    assert resting.noted() == {UNTIL: "2026-11-20T10:16:00Z"}
    resting.turn(1)
    assert resting.noted() == {UNTIL: "2026-11-20T10:16:00Z", RECLAIMABLE: "idle"}
    assert resting.turn(10) == []
    assert resting.events() == ["IdleWarning", "IdleReclaimable"]
    assert [(each.kind, each.figures["sinceMs"]) for each in resting.decisions] == [
        ("warned", T0 + MINUTE),
        ("reclaimable", T0 + MINUTE),
    ]

    resting.turn(1, utilisation=5)
    assert resting.noted() == {}


def test_with_evict_it_is_evicted_after_its_grace_and_a_disruption_budget_keeps_it(resting: Resting) -> None:
    resting.begin(_settings=f"idle: evict\n{SETTINGS}")
    resting.api.refusals["p"] = (429, PDB_429)

    assert resting.turn(15) == []
    assert resting.turn(30) != []
    assert resting.api.deletions == []
    resting.api.refusals.clear()
    before = len(resting.api.patches)
    assert resting.turn(10) == ["p"]
    (condition,) = resting.api.patches[before][1]["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "DisruptionTarget",
        "True",
        "BursarIdle",
    )
    assert resting.events() == ["IdleWarning", "IdleEviction"]
