"""Evictions for overuse: reports, budgets and pods in a real database and settler, an API server that answers
as it is told to, and a clock turned by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from kubernetes import client
from kubernetes.config import ConfigException
from prometheus_client import REGISTRY

from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.leaving import PDB_429, Leaving
from tests.timekeeper.worlds import (
    HOUR,
    MINUTE,
    SECOND,
    Json,
    Town,
    budgets,
    gpu_pod,
    node,
)
from timekeeper.accounts.card_use.evictions import RESULTS
from timekeeper.core.kube.eviction import EvictionResult
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.kubeconfig import of_configuration
from timekeeper.settler.evictions.evictor import keep_evicting
from timekeeper.settler.evictions.reasons import OVERUSE_PROTECTED, OVERUSED
from timekeeper.settler.evictions.rounds import OVERUSE_S, SOON_S, OveruseRound, pause_after_s
from timekeeper.store import fencing as terms
from timekeeper.store.engine.engine import UnavailableError

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"

STEP = 15 * SECOND
EVICT = {"_settings": "overuse: evict\noveruseGrace: 1m"}


class Overused(Leaving):
    """Pods of 8,000 MiB on cards of two nodes, whose agents report; and who evicts."""

    def __init__(self, town: Town, api: FakeApiServer, url: str, folder: Path) -> None:
        super().__init__(town, api, url, folder)
        self.ahead_ms = 0
        self.evictor = self.new_evictor()

    def new_evictor(self, server: Api | None = None) -> OveruseRound:
        """Of a process that has just begun to settle."""
        return OveruseRound(self.context(self.steady, server))

    def steady(self) -> int:
        """The clock that nobody sets: ``ahead_ms`` is what the other was set forward."""
        return self.town.clock() - self.ahead_ms

    def begin(self, *names: str, **entries: str) -> None:
        """Pods that run, and budgets. The evictor has been there for a while."""
        pods = [("pods", pod(name, card)) for card, name in enumerate(names)]
        given = [("configmaps", budgets(**entries))] if entries else []
        self.town.begin(("nodes", node(cards=4)), ("nodes", node("n2")), *pods, *given)
        self.town.clock.turn(MINUTE)

    def use(self, by: str = "n1", **memory_mib: int | None) -> None:
        """The agent's next report: what each pod uses of its card now."""
        pods = [
            {"uid": f"uid-{name}", "cards": [{"uuid": self.card(name), "utilisation": 0, "memory_mib": mib}]}
            for name, mib in memory_mib.items()
        ]
        self.report(pods, by=by)

    def card(self, name: str) -> str:
        """The card that the pod was given."""
        return "GPU-1" if name == "q" else "GPU-0"

    def over(self, for_ms: int, by: str = "n1", **memory_mib: int | None) -> list[Json]:
        """Report the same for a while, and let the evictor look after each report; whom it asked to leave."""
        before = len(self.api.evictions)
        for _ in range(for_ms // STEP):
            self.use(by, **memory_mib)
            self.evictor.step()
            self.town.clock.turn(STEP)
        self.use(by, **memory_mib)
        self.evictor.step()
        return self.api.evictions[before:]


def pod(name: str, card: int = 0, **fields: int | str | Json | None) -> Json:
    made: Json = gpu_pod(name, percent=50, card=card, started_ms=1, **fields)  # type: ignore[arg-type]
    made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]
    return made


@pytest.fixture
def overused(town: Town, tmp_path: Path) -> Iterator[Overused]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Overused(town, api, url, tmp_path)


@contextmanager
def counting(result: str) -> Iterator[list[float]]:
    """How many attempts came to this meanwhile."""
    found: list[float] = []
    before = attempts(result)
    yield found
    found.append(attempts(result) - before)


def attempts(result: str) -> float:
    return REGISTRY.get_sample_value("bursar_overuse_evictions_total", {"result": result}) or 0


def held_back() -> float:
    return REGISTRY.get_sample_value("bursar_overuse_evictions_held_back") or 0


def test_a_pod_over_its_share_for_its_grace_is_evicted_once_with_the_reason(
    overused: Overused, capfd: pytest.CaptureFixture[str]
) -> None:
    overused.begin("p", **EVICT)
    since_ms = overused.town.clock()

    with counting("evicted") as found:
        assert overused.over(45 * SECOND, p=9_000) == []
        overused.town.clock.turn(STEP)
        (eviction,) = overused.over(0, p=9_000)
        assert overused.over(9 * MINUTE, p=9_000) == []  # the watch has not told yet that it goes

    assert eviction["kind"] == "Eviction"
    assert eviction["metadata"] == {"namespace": "team-a", "name": "p"}
    assert eviction["deleteOptions"] == {"preconditions": {"uid": "uid-p"}}
    (event,) = overused.api.events
    assert (event["reason"], event["type"], event["regarding"]["uid"]) == (OVERUSED, "Warning", "uid-p")
    assert event["note"] == (
        "Evicted by Bursar: the pod has used more GPU memory than its share since 2026-11-20T10:01:00Z, now"
        " 9000 MiB of GPU-0 (share 8000 MiB); overuseGrace is 60s"
    )
    (decision,) = (each for each in overused.decisions if each.kind == "evicted")
    assert (decision.reason, decision.name, decision.uid) == (OVERUSED, "p", "uid-p")
    assert decision.owner == "Job/train"
    assert (decision.figures["message"], decision.figures["graceMs"]) == (event["note"], 60_000)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "event=overuse-eviction" in line]
    assert line.endswith(
        "event=overuse-eviction result=evicted namespace=team-a pod=p uid=uid-p node=n1"
        f" since_ms={since_ms} grace_ms=60000 cards=GPU-0:9000/8000 attempt=1"
    )
    assert found == [1]


def test_a_budget_that_says_so_counts_from_the_next_look_on_and_one_that_ceases_to_no_longer(
    overused: Overused,
) -> None:
    overused.begin("p", "q", team_a="gpuHours: 1")
    assert overused.over(2 * MINUTE, p=9_000, q=9_000) == []
    entry = "gpuHours: 1\noveruse: evict\noveruseGrace: 1m"
    overused.town.hear("configmaps", budgets(team_a=entry))
    overused.town.tick()

    assert len(overused.over(0, p=9_000, q=9_000)) == 1
    overused.town.hear("configmaps", budgets(team_a="gpuHours: 1"))
    overused.town.tick()
    assert overused.over(5 * MINUTE, p=9_000, q=9_000) == []


def test_an_agent_of_another_node_causes_no_eviction(overused: Overused) -> None:
    overused.begin("p", **EVICT)

    assert overused.over(2 * MINUTE, by="n2", p=9_000) == []


def test_a_pod_that_ended_or_goes_or_is_not_known_is_left_alone(overused: Overused) -> None:
    overused.begin("p", **EVICT)
    overused.over(45 * SECOND, p=9_000)
    overused.town.clock.turn(STEP)
    leaving = pod("p")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-20T10:02:00Z"
    overused.town.change("pods", leaving)
    assert overused.over(0, p=9_000) == []

    overused.town.change("pods", leaving, deleted=True)
    assert overused.over(0, p=9_000) == []

    overused.town.change("pods", pod("p"))
    assert len(overused.over(0, p=9_000)) == 1


def test_a_pod_of_the_same_name_pays_for_nothing(overused: Overused) -> None:
    overused.begin("p", **EVICT)
    overused.over(45 * SECOND, p=9_000)
    overused.town.hear("pods", pod("p"), deleted=True)
    again = pod("p")
    again["metadata"]["uid"] = "uid-again"
    overused.town.hear("pods", again)
    overused.town.tick()
    overused.town.clock.turn(STEP)

    assert overused.over(STEP, p=9_000) == []


def test_a_settler_without_a_list_of_pods_evicts_no_pod(overused: Overused) -> None:
    overused.begin("p", **EVICT)
    overused.over(45 * SECOND, p=9_000)
    overused.town.start_anew()
    overused.evictor = overused.new_evictor()
    overused.town.clock.turn(MINUTE)

    assert overused.over(0, p=9_000) == []
    overused.town.list_all()
    overused.town.tick()
    assert len(overused.over(0, p=9_000)) == 1


def test_a_settler_that_has_not_read_the_budgets_obeys_none_that_were_written_before(
    overused: Overused,
) -> None:
    overused.begin("p", **EVICT)
    overused.over(45 * SECOND, p=9_000)
    town = overused.town
    town.hear("configmaps", budgets(_settings="overuse: observe"), unheard=True)
    town.start_anew()
    overused.evictor = overused.new_evictor()
    town.hear_all("pods")
    town.tick()

    assert overused.over(MINUTE, p=9_000) == []
    town.list_all()
    assert overused.over(STEP, p=9_000) == []  # heard, and not read yet
    town.tick()
    assert overused.over(MINUTE, p=9_000) == []


def test_observe_counts_also_where_the_clock_was_ahead_when_it_was_written(overused: Overused) -> None:
    overused.begin("p", **EVICT)
    town = overused.town
    town.clock.turn(HOUR)
    town.change("configmaps", budgets(_settings="overuse: observe"))
    town.clock.turn(-HOUR)
    town.resume()
    overused.evictor = overused.new_evictor()

    assert overused.over(3 * MINUTE, p=9_000) == []


def test_only_the_newest_settler_evicts(overused: Overused) -> None:
    overused.begin("p", **EVICT)
    overused.over(45 * SECOND, p=9_000)
    elder = overused.evictor
    overused.town.restart()
    overused.town.tick()
    overused.town.clock.turn(STEP)
    overused.use(p=9_000)

    with pytest.raises(terms.EpochOverError, match="epoch 1 of settler is over"):
        elder.step()
    keep_evicting((elder.run,), Event())  # ends by itself
    assert overused.api.evictions == []


def test_after_a_change_of_settlers_there_is_time_before_the_next_eviction(overused: Overused) -> None:
    overused.begin("p", **EVICT)
    overused.over(45 * SECOND, p=9_000)
    overused.town.restart()
    overused.town.tick()
    overused.evictor = overused.new_evictor()
    overused.town.clock.turn(STEP)

    assert overused.over(0, p=9_000) == []
    assert held_back() == 1
    overused.town.clock.turn(5 * SECOND)
    assert len(overused.over(0, p=9_000)) == 1
    assert held_back() == 0


def test_of_two_that_are_due_one_waits_and_is_counted(overused: Overused) -> None:
    overused.begin("p", "q", **EVICT)
    overused.over(45 * SECOND, p=9_000, q=9_000)
    overused.town.clock.turn(STEP)

    (first,) = overused.over(0, p=9_000, q=9_000)
    assert (overused.evictor.step(), held_back()) == (None, 1)
    overused.town.hear("pods", pod("p"), deleted=True)
    overused.town.clock.turn(20 * SECOND)
    (second,) = overused.over(0, q=9_000)

    assert [each["metadata"]["name"] for each in (first, second)] == ["p", "q"]


def test_a_clock_that_is_set_forward_makes_no_time_pass_between_two_evictions(overused: Overused) -> None:
    overused.begin("p", "q", **EVICT)
    overused.over(MINUTE, p=9_000, q=9_000)
    overused.town.hear("pods", pod("p"), deleted=True)
    overused.town.clock.turn(MINUTE)
    overused.ahead_ms = MINUTE

    assert overused.over(STEP, q=9_000) == []
    assert len(overused.over(STEP, q=9_000)) == 1


def test_a_disruption_budget_is_respected_and_tried_ever_less_often(overused: Overused) -> None:
    overused.begin("p", **EVICT)
    overused.api.refusals["p"] = (429, PDB_429)

    with counting("protected") as found:
        overused.over(HOUR, p=9_000)

    # after 0, 30 s, 1, 2, 4 and 8 minutes more, then each ten
    assert found == [10]
    assert [each["reason"] for each in overused.api.events] == [OVERUSE_PROTECTED]
    assert "A PodDisruptionBudget prevents the eviction of this pod" in overused.api.events[0]["note"]

    del overused.api.refusals["p"]
    with counting("evicted") as found:
        overused.over(10 * MINUTE, p=9_000)
    assert found == [1]


def test_that_a_disruption_budget_keeps_a_pod_is_reported_also_where_an_attempt_failed_before(
    overused: Overused,
) -> None:
    overused.begin("p", **EVICT)
    overused.api.refusals["p"] = (503, {"message": "away"})
    overused.over(MINUTE, p=9_000)
    overused.api.refusals["p"] = (429, PDB_429)
    overused.town.clock.turn(MINUTE)

    overused.over(MINUTE, p=9_000)

    assert [each["reason"] for each in overused.api.events] == [OVERUSE_PROTECTED]


def test_a_pod_that_a_disruption_budget_keeps_takes_no_turn(overused: Overused) -> None:
    overused.begin("p", "q", **EVICT)
    overused.api.refusals["p"] = (429, PDB_429)
    overused.over(45 * SECOND, p=9_000, q=9_000)
    overused.town.clock.turn(STEP)
    overused.use(p=9_000, q=9_000)
    before = len(overused.api.evictions)

    assert [overused.evictor.step() for _ in range(3)] == ["protected", "evicted", None]
    assert [each["metadata"]["name"] for each in overused.api.evictions[before:]] == ["p", "q"]


def test_an_api_server_that_does_not_answer_is_called_again_later(town: Town, tmp_path: Path) -> None:
    away = Overused(town, FakeApiServer(), "http://127.0.0.1:1", tmp_path)
    away.begin("p", **EVICT)

    with counting("unclear") as found:
        away.over(90 * SECOND, p=9_000)

    assert found == [2]


def test_an_undelivered_event_stops_nothing(overused: Overused, capfd: pytest.CaptureFixture[str]) -> None:
    overused.begin("p", "q", **EVICT)
    overused.api.takes_events = False
    overused.over(90 * SECOND, p=9_000, q=9_000)

    assert {each["metadata"]["name"] for each in overused.api.evictions} == {"p", "q"}
    assert capfd.readouterr().err.count("event=event-not-posted namespace=team-a") == len(
        overused.api.evictions
    )


def test_every_result_is_counted_from_the_beginning(overused: Overused) -> None:
    told = REGISTRY.collect()
    names = {
        sample.labels["result"]
        for family in told
        for sample in family.samples
        if sample.name == "bursar_overuse_evictions_total"
    }

    assert names == set(RESULTS)


def test_while_the_database_is_away_the_thread_says_so_and_waits(
    capfd: pytest.CaptureFixture[str],
) -> None:
    stop = Event()

    def away() -> float:
        stop.set()
        raise UnavailableError("gone")

    keep_evicting((away,), stop)

    assert "event=eviction-check-failed error=gone" in capfd.readouterr().err


class Waits(Event):
    """Lets nobody wait, and says stop after so many waits; for how long each would have been."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.pauses_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses_s.append(timeout or 0)
        return len(self.pauses_s) > self.most


def test_a_fault_of_ours_is_reported_and_does_not_end_the_thread(capfd: pytest.CaptureFixture[str]) -> None:
    waits = Waits(3)

    def broken() -> float:
        raise ZeroDivisionError("a fault")

    keep_evicting((broken,), waits)

    assert waits.pauses_s == [0, 30, 30, 30]
    told = capfd.readouterr().err
    assert told.count('event=eviction-check-failed error="ZeroDivisionError: a fault" trace="Traceback') == 3


def test_a_token_that_cannot_be_read_is_no_end_of_evictions(
    overused: Overused, capfd: pytest.CaptureFixture[str]
) -> None:
    """A projected token is empty for a moment, and the package has errors of its own for that."""
    configuration = client.Configuration()
    configuration.host = overused.url
    configuration.api_key = {"authorization": "Bearer own"}
    broken = True

    def renew(_: client.Configuration) -> None:
        if broken:
            raise ConfigException("Token file exists but empty.")

    configuration.refresh_api_key_hook = renew
    overused.evictor = overused.new_evictor(of_configuration(configuration))
    overused.begin("p", **EVICT)

    with counting("unclear") as found:
        assert overused.over(MINUTE, p=9_000) == []
    assert found == [1]
    assert "Token file exists but empty" in capfd.readouterr().err
    broken = False
    assert len(overused.over(MINUTE, p=9_000)) == 1


@pytest.mark.parametrize(
    ("result", "pause_s"),
    [
        (None, OVERUSE_S),
        ("refused", OVERUSE_S),
        ("unclear", OVERUSE_S),
        ("evicted", SOON_S),
        ("gone", SOON_S),
        ("protected", SOON_S),
    ],
)
def test_an_api_server_that_refuses_is_not_called_for_the_next_pod_at_once(
    result: EvictionResult | None, pause_s: float
) -> None:
    waits = Waits(2)

    keep_evicting((lambda: pause_after_s(result),), waits)

    assert waits.pauses_s == [0, pause_s, pause_s]
