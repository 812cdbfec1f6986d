"""Kueue's LocalQueues follow the standing of their namespace: held where it is over budget, let go at once by
a grant, an entry or a new period, else not before five minutes and what is left pays a lookahead. Real
settler and database; the API server's part of server-side apply is a fake that is written beside the
product."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.support.kubeconfig import kubeconfig
from tests.support.waiting import eventually
from tests.timekeeper.fake_api_server import PATHS, FakeApiServer, serving
from tests.timekeeper.kueue import AWAY, LocalQueues
from tests.timekeeper.ledger.test_cluster_map import post, waits
from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, node
from timekeeper.accounts.held.queues import read_queue
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import ineffective_fields
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.decisions import Decision, DecisionRun
from timekeeper.runtime.api_server import Answered
from timekeeper.runtime.connect import connect
from timekeeper.settler import queue_holder
from timekeeper.settler.queue_holder import MOST_WRITES, QueueHolder
from timekeeper.store import decisions

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # its subject is no SQL
HOLD = "gpuHours: 1\nonExhausted: hold\nkueue: hold"
HELD = {"team-a/q": "Hold"}
FREE = {"team-a/q": "None"}
LOOKAHEAD = 10 * MINUTE
_KEYS = count()


class Events:
    """Takes Events, as `EventRecorder` does."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str, str]] = []

    def post_on(self, regarding: dict[str, str], reason: str, note: str) -> None:
        assert regarding["kind"] == "LocalQueue"
        self.posted.append((regarding["name"], reason, note))


class Holding:
    """A town with a queue in team-a, and the holder that follows it."""

    def __init__(self, town: Town) -> None:
        self.town, self.queues, self.events = town, LocalQueues(town.clock), Events()
        self.recorded: list[Decision] = []
        self.seconds = 0.0
        self.queues.create("team-a", "q")
        self.start()

    def start(self) -> None:
        self.holder = QueueHolder(
            self.queues,  # type: ignore[arg-type]
            self.town.store,
            self.town.settler,
            self.events,  # type: ignore[arg-type]
            self.recorded.append,
            self.town.clock,
            lambda: self.seconds,
        )
        self.holder._version, self.holder._absent = "v1beta2", ""

    def restart(self) -> None:
        """kill -9 of the settler: what it knew is gone."""
        self.town.resume()
        self.start()

    def look(self, s: float = 1.0) -> dict[str, str]:
        """What the queues are after one look, a second after the last one."""
        self.seconds += s
        seen = json.loads(json.dumps(self.queues.there))
        self.holder.queues = {raw["metadata"]["uid"]: read_queue(raw) for raw in seen.values()}
        self.holder.step()
        return self.queues.policies()

    def later(self, ms: int, s: float = 1.0) -> dict[str, str]:
        self.town.advance(ms)
        return self.look(s)

    def begin(self, entry: str = HOLD, *pods: Any, **entries: str) -> dict[str, str]:
        items = [("pods", pod) for pod in pods]
        found = budgets(**{"team-a": entry, **entries})
        self.town.begin(("nodes", node("n1", 8)), ("configmaps", found), *items)
        return self.look()

    def end(self, name: str = "p") -> dict[str, str]:
        """A pod has ended now."""
        raw = self.town.objects["pods"][f"team-a/{name}/uid-{name}"]
        at_ms = self.town.clock()
        ended = gpu_pod(name, started_ms=T0, ended_ms=at_ms, card=int(name[1:] or 0))
        self.town.change("pods", raw | {"status": ended["status"]})
        return self.look()

    def grant(self, hours: str, subject: str = "team-a") -> None:
        body = {"subject": subject, "gpuHours": hours, "reason": "test"}
        answer = self.town.post("/v1/grants", body, **{"Idempotency-Key": f"k{next(_KEYS)}"})
        assert answer.status_code == 200, answer.get_json()
        self.town.tick()

    def change(self, entry: str, **entries: str) -> dict[str, str]:
        self.town.clock.turn(SECOND)
        self.town.change("configmaps", budgets(**{"team-a": entry, **entries}))
        return self.look()

    def would(self) -> list[str]:
        """What `would` says, once what was decided is recorded."""
        runs = [DecisionRun(decision, 1, decision.at_ms) for decision in self.recorded]
        self.recorded.clear()
        with self.town.store.writing() as connection:
            decisions.record(connection, "timekeeper", runs)
        said: list[str] = self.town.get("/v1/would").get_json()["notes"]
        return said

    def faults(self) -> str:
        return "; ".join(finding.sentence for finding in self.holder.findings)


@pytest.fixture
def holding(town: Town) -> Holding:
    return Holding(town)


RUNS = gpu_pod("p", started_ms=T0)


def test_a_queue_is_held_while_its_namespace_is_over_budget_and_says_by_whose_budget(
    holding: Holding,
) -> None:
    assert holding.begin(HOLD, RUNS) == FREE

    assert holding.later(51 * MINUTE) == HELD  # 51 and 10 of 60 minutes are used and reserved

    said = "Kueue's queue q is held by the budget of team-a: 0 of 1 GPU-hours left until 1 December."
    assert holding.events.posted == [("q", "QueueHeld", said)]
    (decision,) = holding.recorded
    assert (decision.kind, decision.reason, decision.owner) == ("held", "QueueHeld", "LocalQueue/q")
    assert holding.queues.owners("team-a/q") == ["bursar-timekeeper-queues"]
    assert holding.later(HOUR) == HELD
    assert holding.queues.written == [("team-a/q", "Hold")]


@ON_SQLITE
@pytest.mark.parametrize(
    ("entry", "is_held"),
    [
        ("gpuHours: 1\nonExhausted: hold\nkueue: hold", True),
        ("gpuHours: 1\nonExhausted: deny\nkueue: hold", True),
        ("gpuHours: 1\nonExhausted: evict\nkueue: hold", True),
        ("gpuHours: 1\nonExhausted: reclaim\nkueue: hold", False),
        ("gpuHours: 1\nkueue: hold", False),
        ("gpuHours: 1\nonExhausted: hold", False),
        ("gpuHours: 1\nonExhausted: hold\nkueue: off", False),
        ("gpuHours: 1\nonExhausted: hold\nkueue: hold\nmode: observe", False),
        ("gpuHours: 1\nonExhausted: hold\nkueue: hold\nmode: meter", False),
        ("gpuHours: unlimited\nonExhausted: hold\nkueue: hold", False),
    ],
)
def test_only_where_the_entry_asks_and_its_budget_keeps_pods_and_is_enforced(
    holding: Holding, entry: str, is_held: bool
) -> None:
    holding.begin(entry, RUNS)

    assert holding.later(2 * HOUR) == (HELD if is_held else FREE)


def test_in_observe_and_meter_would_says_which_queues_would_be_held(holding: Holding) -> None:
    holding.begin(f"{HOLD}\nmode: observe", RUNS)
    assert holding.later(2 * HOUR) == FREE
    assert holding.later(MINUTE) == FREE

    said = "Kueue's queue q would be held by the budget of team-a: 0 of 1 GPU-hours left until 1 December."
    assert holding.would() == [said]
    assert holding.events.posted == []
    holding.town.clock.turn(SECOND)
    holding.grant("9")
    holding.look()
    assert holding.would() == []


def test_a_grant_lets_it_go_at_once(holding: Holding) -> None:
    holding.begin(HOLD, RUNS)
    assert holding.later(51 * MINUTE) == HELD

    holding.town.clock.turn(SECOND)
    holding.grant("1")

    assert holding.look() == FREE
    assert holding.queues.written == [("team-a/q", "Hold"), ("team-a/q", None)]
    assert holding.events.posted[-1] == ("q", "QueueLetGo", "Kueue's queue q is let go.")


def test_a_grant_that_does_not_put_it_in_budget_shortens_no_hold(holding: Holding) -> None:
    """The pod's end does, and a hold by reservations lasts five minutes."""
    holding.begin(HOLD, RUNS)
    assert holding.later(54 * MINUTE) == HELD
    holding.town.clock.turn(SECOND)
    holding.grant("0.01")
    assert holding.look() == HELD

    assert holding.end() == HELD


@ON_SQLITE
@pytest.mark.parametrize(
    "entry",
    [
        "gpuHours: 5\nonExhausted: hold\nkueue: hold",
        "gpuHours: unlimited\nonExhausted: hold\nkueue: hold",
        "gpuHours: 1\nonExhausted: deprioritize\nkueue: hold",
        "gpuHours: 1\nonExhausted: hold",
        "gpuHours: 1\nonExhausted: hold\nkueue: hold\nmode: observe",
        "gpuHours: 1\nonExhausted: hold\nkueue: hold\nmode: meter",
    ],
)
def test_an_entry_that_puts_it_in_budget_or_asks_no_more_lets_it_go_at_once(
    holding: Holding, entry: str
) -> None:
    holding.begin(HOLD, RUNS)
    assert holding.later(51 * MINUTE) == HELD

    assert holding.change(entry) == FREE


@ON_SQLITE
@pytest.mark.parametrize(
    ("entry", "settings"), [(HOLD, "lookahead: 1m"), (f"{HOLD}\nperiod: hour", "lookahead: 10m")]
)
def test_another_lookahead_or_period_that_puts_it_in_budget_lets_it_go_at_once(
    holding: Holding, entry: str, settings: str
) -> None:
    holding.begin(HOLD, RUNS, _settings="lookahead: 10m")
    assert holding.later(51 * MINUTE) == HELD
    holding.end()

    assert holding.change(entry, _settings=settings) == FREE


@ON_SQLITE
def test_an_entry_that_goes_lets_it_go_also_where_it_went_while_no_settler_ran(holding: Holding) -> None:
    holding.begin(HOLD, RUNS)
    assert holding.later(51 * MINUTE) == HELD
    holding.town.clock.turn(SECOND)
    holding.town.hear("configmaps", budgets(**{"team-b": HOLD}))

    holding.town.clock.turn(5 * MINUTE)
    holding.restart()
    holding.town.advance(5 * MINUTE)

    assert holding.look() == FREE


def test_a_new_period_lets_it_go_at_once(holding: Holding) -> None:
    holding.begin(f"{HOLD}\nperiod: hour", gpu_pod("p", started_ms=T0), gpu_pod("p1", started_ms=T0, card=1))
    assert holding.later(50 * MINUTE) == HELD

    holding.town.advance(9 * MINUTE + 59 * SECOND)
    assert holding.look() == HELD
    holding.end("p1")

    assert holding.later(2 * SECOND) == FREE


def test_reservations_that_end_let_it_go_after_five_minutes_if_a_lookahead_is_left(
    holding: Holding,
) -> None:
    """Two pods used 40 of 60 minutes each, of 1.5 hours; the lookahead of both is 20 minutes."""
    entry = "gpuHours: 1.5\nonExhausted: hold\nkueue: hold"
    holding.begin(entry, gpu_pod("p", started_ms=T0), gpu_pod("p1", started_ms=T0, card=1))
    assert holding.later(34 * MINUTE) == {"team-a/q": "None"}
    assert holding.later(1 * MINUTE) == HELD  # 70 + 20 of 90

    assert holding.end("p") == HELD  # 70 + 10 of 90: in budget, and too soon
    assert holding.later(4 * MINUTE + 59 * SECOND) == HELD
    assert holding.end("p1") == HELD
    assert holding.later(SECOND) == HELD  # 75 of 90 are used: 15 are left, and two pods need 20
    holding.grant("0.1")  # six minutes more

    assert holding.look() == FREE


def test_a_hold_needs_at_most_the_whole_grant(holding: Holding) -> None:
    """Four pods at once reserve 40 minutes of a grant of 30: they end before they use anything."""
    entry = "gpuHours: 0.5\nonExhausted: hold\nkueue: hold"
    pods = [gpu_pod(f"p{at}", started_ms=T0, card=at) for at in range(4)]
    assert holding.begin(entry, *pods) == HELD
    for at in range(4):
        holding.end(f"p{at}")

    assert holding.later(4 * MINUTE) == HELD
    assert holding.later(MINUTE) == FREE  # nothing is used: all 30 are left


def test_since_when_and_at_which_rate_a_queue_is_held_survives_the_settler(holding: Holding) -> None:
    entry = "gpuHours: 1.5\nonExhausted: hold\nkueue: hold"
    holding.begin(entry, gpu_pod("p", started_ms=T0), gpu_pod("p1", started_ms=T0, card=1))
    assert holding.later(35 * MINUTE) == HELD
    holding.end("p")
    holding.end("p1")

    holding.restart()
    assert holding.later(4 * MINUTE) == HELD
    holding.restart()
    assert holding.later(2 * MINUTE) == FREE  # 20 of 90 are left, as two pods need
    assert holding.queues.written == [("team-a/q", "Hold"), ("team-a/q", None)]


@ON_SQLITE
def test_the_group_of_a_namespace_holds_all_of_its_queues(holding: Holding) -> None:
    holding.queues.create("team-b", "other")
    entry = "gpuHours: unlimited\ngroup: all\nkueue: hold"
    pool = {"_group.all": "gpuHours: 1\nonExhausted: hold"}
    holding.begin(entry, RUNS, **{"team-b": entry, **pool})

    assert holding.later(2 * HOUR) == {"team-a/q": "Hold", "team-b/other": "Hold"}
    assert "by the budget of group all: 0 of 1" in holding.events.posted[0][2]
    holding.town.clock.turn(SECOND)
    holding.grant("5", "_group.all")
    assert holding.look() == {"team-a/q": "None", "team-b/other": "None"}


@ON_SQLITE
@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
def test_another_value_of_another_manager_stands_and_a_finding_says_so(holding: Holding, policy: str) -> None:
    holding.begin(HOLD, RUNS)
    holding.queues.set("team-a/q", policy)

    assert holding.later(2 * HOUR) == {"team-a/q": policy}

    assert holding.queues.written == []
    assert f"team-a/q; its stopPolicy {policy} is of kubectl-edit, and stands" in holding.faults()
    holding.town.clock.turn(SECOND)
    holding.grant("9")
    assert holding.look() == {"team-a/q": policy}
    assert holding.faults() == ""


@ON_SQLITE
def test_what_a_person_sets_during_our_hold_stands_after_it(holding: Holding) -> None:
    holding.begin(HOLD, RUNS)
    assert holding.later(2 * HOUR) == HELD
    holding.queues.set("team-a/q", "HoldAndDrain")
    assert holding.later(MINUTE) == {"team-a/q": "HoldAndDrain"}

    holding.grant("9")

    assert holding.look() == {"team-a/q": "HoldAndDrain"}


@ON_SQLITE
def test_a_value_that_changed_since_it_was_seen_is_not_overwritten(holding: Holding) -> None:
    holding.begin(HOLD, RUNS)
    holding.town.advance(2 * HOUR)
    seen = read_queue(json.loads(json.dumps(holding.queues.there["team-a/q"])))
    holding.queues.set("team-a/q", "HoldAndDrain")

    holding.holder.queues = {seen.uid: seen}
    holding.holder.step()

    assert holding.queues.policies() == {"team-a/q": "HoldAndDrain"}


@ON_SQLITE
def test_a_queue_that_vanished_is_not_made_again(holding: Holding) -> None:
    holding.begin(HOLD, RUNS)
    holding.town.advance(2 * HOUR)
    seen = read_queue(json.loads(json.dumps(holding.queues.there.pop("team-a/q"))))

    holding.holder.queues = {seen.uid: seen}
    holding.holder.step()

    assert holding.queues.there == {}


@ON_SQLITE
def test_who_takes_the_hold_back_gets_it_again_once_a_minute_and_a_finding(holding: Holding) -> None:
    holding.begin(HOLD, RUNS)
    assert holding.later(2 * HOUR) == HELD

    for _ in range(10):
        holding.queues.set("team-a/q", "None", "argocd-controller")
        assert holding.later(SECOND, 5.0) == FREE
        assert "argocd-controller took the hold back" in holding.faults()
    assert holding.later(SECOND, 11.0) == HELD
    assert holding.queues.written == [("team-a/q", "Hold")] * 2


@ON_SQLITE
@pytest.mark.parametrize("answer", [AWAY, Answered(500, {"message": "the webhook of Kueue is away"})])
def test_a_write_that_fails_is_a_finding_and_is_made_again(holding: Holding, answer: Any) -> None:
    holding.begin(HOLD, RUNS)
    holding.queues.answer = answer
    assert holding.later(2 * HOUR) == FREE
    assert holding.later(MINUTE) == FREE
    assert holding.queues.calls == 1  # not before five seconds
    assert "is away" in holding.faults() or "cannot be reached" in holding.faults()

    holding.queues.answer = None
    assert holding.later(SECOND, 5.0) == HELD
    holding.look()
    assert holding.faults() == ""


@ON_SQLITE
def test_where_kueue_is_absent_only_an_entry_that_asks_makes_a_finding(holding: Holding) -> None:
    holding.begin("gpuHours: 1\nonExhausted: hold", RUNS)
    holding.holder._absent = "the API server has no Kueue: not found"
    assert holding.faults() == ""

    holding.change(HOLD)

    assert "team-a; the API server has no Kueue: not found" in holding.faults()


@ON_SQLITE
def test_no_more_than_twenty_writes_are_made_in_any_second(holding: Holding) -> None:
    """200 queues of 100 namespaces, at the end of their month."""
    holding.queues.there.clear()
    names = [f"t{at:03}" for at in range(100)]
    for name in names:
        holding.queues.create(name, "one")
        holding.queues.create(name, "two")
    pods = [gpu_pod(f"p-{name}", namespace=name, started_ms=T0, node=f"n{name}") for name in names]
    nodes = [("nodes", node(f"n{name}", 1)) for name in names]
    entries = budgets(**dict.fromkeys(names, HOLD))
    holding.town.begin(*nodes, ("configmaps", entries), *(("pods", pod) for pod in pods))
    holding.town.clock.turn(2 * HOUR)
    for name in names:
        holding.town.node_heard(f"n{name}")
    holding.town.tick()
    times = looked_until(holding, "Hold")
    assert len(times) == 200
    assert most_in_a_second(times) == MOST_WRITES

    for pod in pods:
        holding.town.hear("pods", pod, deleted=True)
    holding.town.tick()
    holding.town.clock.turn(11 * DAY)  # the first of December
    holding.town.tick()
    times = looked_until(holding, "None")

    assert len(times) == 200
    assert most_in_a_second(times) == MOST_WRITES


def looked_until(holding: Holding, policy: str) -> list[float]:
    """When each write was made until all queues have this policy, by looks four times a second."""
    times: list[float] = []
    for _ in range(100):
        before = len(holding.queues.written)
        found = set(holding.look(0.25).values())
        times += [holding.seconds] * (len(holding.queues.written) - before)
        if found == {policy}:
            return times
    raise AssertionError(found)


def most_in_a_second(times: list[float]) -> int:
    return max(sum(at <= other < at + 1 for other in times) for at in times)


class Oracle:
    """What the queue of team-a must be, from its account's figures as REST tells them, and from what
    happened: computed beside the product. ``running``: how many whole cards are charged."""

    def __init__(self) -> None:
        self.held_ms: int | None = None
        self.rate = self.granted = 0

    def expects(self, budget: dict[str, Any], at_ms: int, running: int, new_period: bool) -> bool:
        if budget["remaining"] <= 0:
            if self.held_ms is None:
                self.held_ms, self.rate, self.granted = at_ms // 1000 * 1000, running, 0
            return True
        if self.held_ms is None:
            return False
        needed = min(budget["granted"], self.rate * GPU * LOOKAHEAD)
        is_let_go = new_period or self.granted >= budget["remaining"]
        if not is_let_go and (at_ms - self.held_ms < 5 * MINUTE or budget["remaining"] < needed):
            return True
        self.held_ms = None
        return False


@ON_SQLITE
@pytest.mark.parametrize("seed", range(4))
def test_after_each_event_the_queues_are_as_an_oracle_has_them(holding: Holding, seed: int) -> None:
    chance, oracle = random.Random(seed), Oracle()
    running: list[str] = []
    holding.begin(f"{HOLD}\nperiod: day")
    town, day, times_held = holding.town, T0 // DAY, 0
    for number in range(80):
        what = chance.choice(["run", "run", "end", "grant", "wait", "wait", "wait", "kill"])
        town.clock.turn(SECOND)
        if what == "run" and len(running) < 8:
            name = f"p{number}"
            card = next(at for at in range(8) if f"{at}" not in {pod.split("@")[1] for pod in running})
            running.append(f"{name}@{card}")
            town.change("pods", gpu_pod(name, started_ms=town.clock(), created_ms=town.clock(), card=card))
        elif what == "end" and running:
            name, place = running.pop(chance.randrange(len(running))).split("@")
            raw = town.objects["pods"][f"team-a/{name}/uid-{name}"]
            started = raw["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
            ended = gpu_pod(name, started_ms=T0, ended_ms=town.clock(), card=int(place))
            state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
            state["startedAt"] = started
            town.change("pods", raw | {"status": ended["status"]})
        elif what == "grant":
            hours = chance.choice(["0.02", "0.1", "0.5"])
            holding.grant(hours)
            oracle.granted += round(float(hours) * HOUR * GPU)
        elif what == "kill":
            holding.restart()
        else:
            town.advance(chance.choice([20 * SECOND, 2 * MINUTE, 11 * MINUTE]))
        town.advance()
        is_new = town.clock() // DAY != day
        day = town.clock() // DAY
        expected = oracle.expects(holding.town.budget(), town.clock(), len(running), is_new)
        assert holding.look() == (HELD if expected else FREE), (seed, number, what)
        times_held += expected
    assert 0 < times_held < 80


@pytest.mark.parametrize(
    ("key", "entry", "says"),
    [
        ("team-a", "gpuHours: 1\nkueue: drain", "kueue: "),
        ("_group.a", HOLD, "kueue: "),
        ("team-a", "gpuHours: 1\nkueue: hold", "without a limit and onExhausted: hold, deny or evict"),
        ("team-a", "gpuHours: unlimited\nonExhausted: hold\nkueue: hold", "without a limit"),
        ("team-a", HOLD, ""),
        ("_defaults", HOLD, ""),
        ("team-a", "gpuHours: unlimited\ngroup: all\nkueue: hold", ""),
    ],
)
def test_a_field_that_is_wrong_or_has_no_effect_is_said(key: str, entry: str, says: str) -> None:
    value = read_entry(key, entry)

    said = value.sentence() if isinstance(value, EntryError) else "; ".join(ineffective_fields(value))
    assert (says in said) if says else said == ""


@ON_SQLITE
def test_an_entry_of_all_other_namespaces_holds_their_queues_too(holding: Holding) -> None:
    holding.town.begin(("nodes", node()), ("configmaps", budgets(_defaults=HOLD)), ("pods", RUNS))

    assert holding.later(2 * HOUR) == HELD


def kept_pod(name: str, *gates: str, how: str = "", **fields: Any) -> Any:
    """A pod without a node behind these gates."""
    annotations = {"bursar.dev/held": how} if how else {}
    raw = gpu_pod(name, node="", annotations=annotations, **fields)
    raw["spec"] |= {"schedulingGates": [{"name": gate} for gate in gates]}
    return raw


@ON_SQLITE
@pytest.mark.parametrize("how", ["", "budget"])
def test_a_pod_behind_kueues_gate_reserves_nothing_and_counts_as_new_once_it_is_admitted(
    holding: Holding, how: str
) -> None:
    """Else what waits in a held queue would reserve the budget that holds it, for ever."""
    gates = ("kueue.x-k8s.io/admission", "bursar.dev/budget") if how else ("kueue.x-k8s.io/admission",)
    town = holding.town
    holding.begin(HOLD, kept_pod("p", *gates, how=how))
    assert reserved(town) == 0
    assert town.settler.view.held.pods == {}  # Bursar opens its own gate last
    town.advance(LOOKAHEAD)

    town.change("pods", kept_pod("p", *gates[1:], how=how))
    assert (reserved(town), len(town.settler.view.held.pods)) == ((0, 1) if how else (GPU * LOOKAHEAD, 0))
    town.change("pods", kept_pod("p", how=how))
    assert reserved(town) == GPU * LOOKAHEAD
    town.advance(LOOKAHEAD)
    assert reserved(town) == (GPU * LOOKAHEAD if how else 0)

    town.change("pods", gpu_pod("p", started_ms=town.clock()))
    assert reserved(town) == GPU * LOOKAHEAD  # once


def reserved(town: Town) -> int:
    return int(town.budget()["reserved"])


@ON_SQLITE
def test_pods_that_wait_in_kueue_and_the_namespaces_budget_name_the_held_queues(holding: Holding) -> None:
    holding.begin(HOLD, RUNS)
    assert holding.later(2 * HOUR) == HELD
    said = "Kueue's queue q is held by the budget of team-a: 0 of 1 GPU-hours left until 1 December"
    holding.would()  # recorded
    gate = "its scheduling gate kueue.x-k8s.io/admission keeps it from every scheduler: it is Kueue's, until"
    queued = waits("a", reason=f"{gate} its Workload is admitted")
    listed = [queued, waits("b"), waits("c", "team-b", reason=queued["reason"])]
    post(holding.town, waiting={"total": 3, "pods": listed, "more": {}})

    found = {pod["name"]: pod["reason"] for pod in holding.town.get("/v1/waiting").get_json()["pods"]}
    assert found == {
        "a": f"{queued['reason']}; {said}",
        "b": waits("b")["reason"],
        "c": queued["reason"],
    }
    assert said in holding.town.budget()["warnings"]
    steps = holding.town.get("/v1/explain/team-a/localqueue/q").get_json()["steps"]
    assert [(step["kind"], step["sentence"]) for step in steps] == [("held", f"{said}.")]


@ON_SQLITE
def test_a_held_queue_that_is_deleted_is_not_named_any_more(holding: Holding) -> None:
    holding.begin(HOLD, RUNS)
    assert holding.later(2 * HOUR) == HELD
    holding.would()
    holding.restart()
    holding.queues.there.clear()
    holding.look()
    holding.would()

    assert holding.town.budget()["warnings"] == []


class Away(FakeApiServer):
    """An API server that has Kueue once ``versions`` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.objects["localqueues"] = {}
        self.versions: list[str] = []
        self.asked = 0
        self.others = self.groups

    def groups(self, _method: str, path: str, _body: Any) -> tuple[int, Any] | None:
        if path != "/apis/kueue.x-k8s.io":
            return None
        self.asked += 1
        found = [{"version": version} for version in self.versions]
        return (200, {"versions": found}) if found else (404, {"message": "not found"})


@ON_SQLITE
@pytest.mark.parametrize(
    ("served", "taken"),
    [
        (["v1beta1", "v1beta2"], "v1beta2"),
        (["v1", "v1beta1", "v1beta2"], "v1"),
        (["v1beta1"], "v1beta1"),
    ],
)
def test_a_kind_that_comes_later_is_followed_in_the_newest_version_that_is_served(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[str], taken: str
) -> None:
    holding, api = Holding(town), Away()
    monkeypatch.setitem(PATHS, queues_of(taken), "localqueues")
    monkeypatch.setattr(queue_holder, "_AGAIN_S", 0.01)
    holding.begin(HOLD)
    with following(holding, api, tmp_path) as holder:
        eventually(lambda: api.asked > 2, "it to be looked for")
        assert "team-a; the API server has no Kueue: not found" in said_of(holder)
        api.forbidden.add("localqueues")
        api.versions = served
        eventually(lambda: "403" in said_of(holder), "a missing right to be said")
        api.forbidden.clear()
        api.put("localqueues", holding.queues.there["team-a/q"])
        eventually(lambda: [*holder.queues] == ["uid-team-a-q"], "the queue")
        eventually(lambda: said_of(holder) == "", "no finding")
        api.delete("localqueues", "q", "team-a")
        eventually(lambda: not holder.queues, "its end")


@ON_SQLITE
def test_a_version_that_is_not_served_any_more_is_left_for_another(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding, api = Holding(town), Away()
    monkeypatch.setitem(PATHS, queues_of("v1beta1"), "localqueues")
    monkeypatch.setattr(queue_holder, "_AGAIN_S", 0.01)
    holding.begin(HOLD)
    api.versions = ["v1beta1"]
    with following(holding, api, tmp_path) as holder:
        eventually(lambda: said_of(holder) == "", "it to be followed")
        monkeypatch.delitem(PATHS, queues_of("v1beta1"))
        monkeypatch.setitem(PATHS, queues_of("v1"), "localqueues")
        api.versions = ["v1"]
        with api.changed:  # the watch's version is one of the past
            api.tell("nodes", "ADDED", node())
            api.compact()
        api.put("localqueues", holding.queues.there["team-a/q"])
        eventually(lambda: [*holder.queues] == ["uid-team-a-q"], "the queue")


def queues_of(version: str) -> str:
    return f"/apis/kueue.x-k8s.io/{version}/localqueues"


@contextmanager
def following(holding: Holding, api: Away, folder: Path) -> Iterator[QueueHolder]:
    """A holder whose thread follows the queues of this API server."""
    stop, town = Event(), holding.town
    with serving(api) as url:
        holder = QueueHolder(
            connect(kubeconfig(folder, url)),
            town.store,
            town.settler,
            holding.events,  # type: ignore[arg-type]
            holding.recorded.append,
            town.clock,
        )
        thread = Thread(target=holder.follow, args=(stop,))
        thread.start()
        try:
            yield holder
        finally:
            stop.set()
            api.end()
            thread.join()


def said_of(holder: QueueHolder) -> str:
    """What is found wrong by one more look."""
    holder.step()
    return "; ".join(finding.sentence for finding in holder.findings)


@ON_SQLITE
def test_where_no_entry_ever_asked_the_api_server_is_not_asked_for_kueue(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding, stop, looks = Holding(town), Event(), count()
    holding.begin("gpuHours: 1\nonExhausted: hold")
    calls: list[str] = []
    holding.queues.call = lambda *asked, **_: calls.append(asked[1])  # type: ignore[method-assign,assignment]
    monkeypatch.setattr(stop, "wait", lambda _: next(looks) > 3)

    holding.holder.follow(stop)

    assert calls == []
