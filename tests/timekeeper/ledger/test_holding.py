"""Pods that wait behind the gate: in no balance, released in order, and never more than can be paid. Real
database and settler, an API server of dicts, a clock turned by hand."""

import copy
import random
from threading import Barrier, Lock
from typing import Any

import pytest
from sqlalchemy import event

from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_decisions import post, posted
from tests.timekeeper.ledger.test_evicting import Waits
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.core.decisions import Decision
from timekeeper.runtime.api_server import Answered, Lost, Reply, Unsent
from timekeeper.settler.releaser import (
    AWAY_MS,
    AWAY_S,
    CALLS_AT_ONCE,
    MANY_UNTRIED,
    MAX_AT_ONCE,
    MAX_CREDIT,
    PAUSE_COST,
    QUIET_MS,
    SOON_MS,
    STEP_S,
    UNCLEAR_MS,
    Releaser,
    keep_releasing,
)
from timekeeper.store.engine.engine import UnavailableError
from timekeeper.store.fencing import EpochOverError

ONE_DATABASE = "decisions about values; test_postings, test_heartbeats and the machine store the same on both"

GATE = {"name": "bursar.dev/budget"}
OTHER = {"name": "example.com/other"}
LOOKAHEAD = 10 * MINUTE
HOLD = "gpuHours: {hours}\nperiod: month\nonExhausted: hold"


def held_pod(
    name: str, *, how: str = "budget", others: bool = False, priority: int = 0, **fields: Any
) -> Json:
    """A pod as the webhook makes it where the budget is used."""
    raw = gpu_pod(
        name,
        node="",
        standing="OVER_BUDGET",
        annotations={"bursar.dev/held": how},
        **({"created_ms": T0} | fields),
    )
    raw["spec"] |= {"schedulingGates": [OTHER, GATE] if others else [GATE], "priority": priority}
    return raw


class Holding:
    """A town, and who releases its pods. ``loses``: the API server carries calls out and does not answer;
    ``refuses``: it answers so. ``waits``: it answers calls once as many are under way."""

    def __init__(self, town: Town) -> None:
        self.waits: Barrier | StandsStill | None = None
        self._one = Lock()  # the settler hears one change after another
        self.town = town
        self.loses = False
        self.refuses: Reply | None = None
        self.hears = True  # the settler's watch brings changes
        self.calls: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.decisions: list[Decision] = []
        self.releaser = self.new_releaser()

    def new_releaser(self, at_once: int = 1) -> Releaser:
        """Of the town's settler, after its quiet time."""
        settler = self.town.settler
        made = Releaser(
            self.town.store,
            settler.epoch,
            self.patch,
            lambda _namespace, name, _uid, reason, _note: self.events.append((name, reason)),
            lambda: settler.view.held,
            self.town.clock,
            self.decisions.append,
            reserved=settler.reserve,
            at_once=at_once,
        )
        self.town.clock.turn(QUIET_MS)
        return made

    def patch(self, path: str, body: Any) -> Reply:
        """The API server's answer to a strategic merge patch."""
        if self.waits is not None:
            self.waits.wait()
        with self._one:
            return self._patched(path, body)

    def _patched(self, path: str, body: Any) -> Reply:
        self.calls.append(path.rpartition("/")[2])
        if self.refuses is not None:
            return self.refuses
        raw = next((each for each in self.pods() if path.endswith(f"/{each['metadata']['name']}")), None)
        if raw is None:
            return Answered(404, {"message": "not found"})
        annotations = raw["metadata"].get("annotations", {})
        late = body["metadata"].get("annotations", {})
        assert late.keys() == {name for name, text in annotations.items() if text == "unknown"}
        assert body == {
            "metadata": {"uid": raw["metadata"]["uid"]} | ({"annotations": late} if late else {}),
            "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE["name"]}]},
        }
        after = copy.deepcopy(raw)
        after["metadata"]["annotations"] = annotations | late
        after["spec"]["schedulingGates"] = [each for each in raw["spec"]["schedulingGates"] if each != GATE]
        self.town.hear("pods", after, unheard=not self.hears)
        return Lost("no answer") if self.loses else Answered(200, {})

    def pods(self) -> list[Json]:
        """All pods as the API server has them."""
        return list(self.town.objects["pods"].values())

    def begin(self, *pods: Json, **entries: str) -> None:
        """These budgets and pods; two nodes of two cards."""
        found = [("pods", each) for each in pods]
        self.town.begin(("nodes", node()), ("configmaps", budgets(**entries)), *found)

    def gated(self) -> set[str]:
        """Names of the pods that wait behind the gate."""
        return {
            each["metadata"]["name"]
            for each in self.pods()
            if GATE in each["spec"].get("schedulingGates", [])
        }

    def step(self) -> list[str]:
        """The names of the pods that one step released."""
        before = self.gated()
        self.releaser.step()
        return sorted(before - self.gated())

    def restart(self) -> None:
        """The settler's process is killed, and another starts."""
        self.town.resume()
        self.releaser = self.new_releaser()


@pytest.fixture
def holding(town: Town) -> Holding:
    return Holding(town)


def balance(town: Town) -> Json:
    found: Json = town.get("/v1/balances/team-a").get_json()
    return found


def test_a_held_pod_is_in_no_balance_and_a_released_one_is_until_it_is_bound(holding: Holding) -> None:
    town = holding.town
    holding.begin(held_pod("p", created_ms=T0 - HOUR), team_a=HOLD.format(hours=1))
    assert balance(town)["reserved"] == 0

    assert holding.step() == ["p"]
    town.tick()
    reserved = balance(town)["reserved"]
    town.advance(HOUR)  # however long it waits for a node
    later = balance(town)["reserved"]

    assert reserved == later == GPU * LOOKAHEAD
    assert holding.events == [("p", "Released")]


def test_a_new_pod_says_its_place_and_when_it_is_released_at_the_earliest(holding: Holding) -> None:
    """A sixth of an hour pays one whole card's lookahead a day; two pods go first, one by its priority."""
    spent = gpu_pod("spent", started_ms=T0, ended_ms=T0 + HOUR)
    holding.town.clock.turn(HOUR)
    pods = [held_pod("old"), held_pod("first", priority=5), held_pod("new", created_ms=T0 + HOUR)]
    holding.begin(spent, *pods, team_a="gpuHours: 0.17\nperiod: day\nonExhausted: hold")

    said = {each.pod.name: each.message for each in holding.town.pod_notices if each.reason == "HeldByBudget"}

    assert said == {  # the others are older than a notice about a creation may be
        "new": "The scheduling gate bursar.dev/budget holds this pod until the GPU budget of namespace "
        "team-a can pay it: 0.1667 GPU-hours at once, for 600 s at the rate 1; team-a is 0.83 GPU-hours over "
        "budget until 2026-11-21T00:00:00Z: 0.9967 are missing. Held pods of the namespace that go before "
        "it: 2. Released at the earliest: "
        "2026-11-23T00:00:00Z."
    }


def test_the_queue_is_read_by_rest_with_places_and_pages(holding: Holding) -> None:
    """Half an hour a day pays the lookahead of three whole cards; each namespace has a queue of its own."""
    town = holding.town
    now_ms = town.clock()
    pods = [held_pod(f"p{index}", created_ms=T0 + index) for index in range(4)]
    other = held_pod("other", namespace="team-b", how="turn", priority=3)
    empty = "gpuHours: {}\nperiod: day\nonExhausted: hold"
    holding.begin(*pods, other, team_a=empty.format(0.5), team_b=empty.format(0))

    first = town.get("/v1/held?limit=3").get_json()
    rest = town.get(f"/v1/held?limit=3&after={first['next']}").get_json()
    ours = town.get("/v1/held?namespace=team-b").get_json()["held"]
    holding.step()
    town.tick()
    after = town.get("/v1/held?namespace=team-a").get_json()["held"]
    town.hear("pods", pods[3], deleted=True, unheard=True)
    town.resume()

    midnight = T0 + 14 * HOUR
    found = [(each["pod"], each["ahead"], each["earliest"]) for each in (*first["held"], *rest["held"])]
    assert found == [
        *((f"p{index}", index, now_ms) for index in range(3)),
        ("p3", 3, midnight + 24 * HOUR),
        ("other", 0, None),
    ]
    assert rest["next"] is None
    assert [(each["waitsFor"], each["priority"]) for each in ours] == [("turn", 3)]
    assert [(each["pod"], each["ahead"]) for each in after] == [("p3", 0)]
    assert town.get("/v1/held?namespace=team-a").get_json()["held"] == []


def test_no_more_is_released_than_can_be_paid_also_before_the_next_tick(holding: Holding) -> None:
    """Half an hour pays the lookahead of three whole cards."""
    holding.hears = False
    pods = [held_pod(f"p{index}", created_ms=T0 + index) for index in range(6)]
    holding.begin(*pods, team_a=HOLD.format(hours=0.5))

    first = holding.step()
    holding.town.change(
        "pods", held_pod("urgent", priority=9)
    )  # created before the watch brings the releases
    again = holding.step()
    holding.town.change("pods", held_pod("urgent"), deleted=True)
    holding.town.list_all()
    holding.town.tick()

    assert (first, again, holding.step()) == (["p0", "p1", "p2"], [], [])
    assert holding.calls == first  # each once
    assert holding.town.standing() == "OVER_BUDGET"
    holding.town.clock.turn(SECOND)
    holding.town.change("configmaps", budgets(team_a=HOLD.format(hours=0.75)))  # a grant
    assert holding.step() == ["p3"]


@pytest.mark.parametrize("answered", [True, False], ids=["noted", "killed before the answer"])
def test_a_killed_settler_neither_forgets_a_pod_nor_releases_for_the_same_room_twice(
    holding: Holding, answered: bool
) -> None:
    pods = [held_pod(f"p{index}", created_ms=T0 + index) for index in range(4)]
    holding.begin(*pods, team_a=HOLD.format(hours=0.34))
    holding.hears, holding.loses = False, not answered

    first = holding.step()
    holding.restart()
    second = [*holding.step(), *holding.step()]
    holding.town.clock.turn(SECOND)
    holding.town.change("configmaps", budgets(team_a=HOLD.format(hours=1)))
    holding.loses = False

    assert (first, second) == ((["p0", "p1"], []) if answered else (["p0"], ["p1"]))
    assert holding.step() == ["p2", "p3"]


def test_a_settler_that_starts_again_writes_no_held_pod_again(holding: Holding) -> None:
    raw = held_pod("p")
    raw["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]
    holding.begin(raw, team_a=HOLD.format(hours=0))
    sent: list[str] = []
    event.listen(holding.town.store.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))

    holding.restart()

    rows = [each for each in sent if "held_pods" in each]
    assert [each.split()[0] for each in rows] == ["SELECT"]


def test_an_answer_that_never_came_is_tried_again_after_a_while(holding: Holding) -> None:
    """Until then it counts as released; no other call of the step is made on the old decision."""
    holding.begin(held_pod("p"), held_pod("q", created_ms=T0 + 1), team_a=HOLD.format(hours=0.34))
    holding.refuses = Lost("no answer")

    holding.step()
    assert holding.calls == ["p"]
    holding.step()
    holding.step()
    assert holding.calls == ["p", "q"]
    holding.town.clock.turn(UNCLEAR_MS)
    holding.refuses = None

    assert holding.step() == ["p", "q"]


def test_a_refused_release_holds_no_other_back(holding: Holding) -> None:
    holding.begin(held_pod("p"), held_pod("q", created_ms=T0 + 1), team_a=HOLD.format(hours=0.2))
    holding.refuses = Answered(403, {"message": "no"})
    holding.step()
    holding.refuses = None

    assert holding.step() == ["q"]


AT_ONCE = {
    "without an entry": {},
    "unlimited": {"team_a": "gpuHours: unlimited\nonExhausted: hold"},
    "observed": {"team_a": "gpuHours: 0\nonExhausted: hold\nmode: observe"},
    "another mode": {"team_a": "gpuHours: 0\nonExhausted: deprioritize"},
    "in budget": {"team_a": HOLD.format(hours=100)},
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_a_pod_that_need_not_wait_is_released_at_once(holding: Holding, case: str) -> None:
    holding.begin(held_pod("p", others=True), held_pod("q", how="turn"), **AT_ONCE[case])

    assert holding.step() == ["p", "q"]
    (left,) = [each for each in holding.pods() if each["metadata"]["name"] == "p"]
    assert left["spec"]["schedulingGates"] == [OTHER]


STAYING = {
    "hold": {"team_a": HOLD.format(hours=0)},
    "deny": {"team_a": "gpuHours: 0\nonExhausted: deny"},
    "its group's": {"team_a": "gpuHours: 9\ngroup: g", "_group.g": HOLD.format(hours=0)},
    "the default": {"_defaults": HOLD.format(hours=0)},
}


@pytest.mark.parametrize("case", STAYING)
def test_a_pod_that_cannot_be_paid_stays(holding: Holding, case: str) -> None:
    holding.begin(held_pod("p"), **STAYING[case])

    assert holding.step() == []


def test_a_group_pays_for_the_waiting_pods_of_all_its_members(holding: Holding) -> None:
    member = "gpuHours: 9\ngroup: g"
    entries = {"team_a": member, "team_b": member, "_group.g": HOLD.format(hours=0.17)}
    holding.begin(held_pod("p"), held_pod("q", namespace="team-b", created_ms=T0 + 1), **entries)

    assert holding.step() == ["p"]
    holding.town.tick()
    assert holding.step() == []


def test_when_a_pod_is_released_at_the_earliest_counts_what_others_of_its_group_reserve(
    holding: Holding,
) -> None:
    """A sixth of an hour a day pays one whole card's lookahead, which a released pod of another namespace
    reserves; one that has no group reserves nothing of it."""
    town, member = holding.town, "gpuHours: 9\ngroup: g"
    entries = {"team_a": member, "team_b": member, "team_c": "gpuHours: 9"}
    group = "gpuHours: 0.17\nperiod: day\nonExhausted: hold"
    foreign = gpu_pod("foreign", namespace="team-c", node="")
    holding.begin(held_pod("p"), foreign, **entries, **{"_group.g": group})

    def earliest(name: str) -> int:
        found = town.get(f"/v1/held?namespace={name}").get_json()["held"]
        return int(found[0]["earliest"])

    assert earliest("team-a") == town.clock()
    assert holding.step() == ["p"]
    town.tick()
    town.change("pods", held_pod("q", namespace="team-b", created_ms=town.clock()))

    midnight = T0 + 14 * HOUR
    assert earliest("team-b") == midnight
    (said,) = [
        each.message for each in town.pod_notices if (each.pod.name, each.reason) == ("q", "HeldByBudget")
    ]
    assert said.endswith("Released at the earliest: 2026-11-21T00:00:00Z.")


def test_a_pod_that_the_groups_period_cannot_pay_holds_no_other_namespace_back(holding: Holding) -> None:
    """A user of one namespace creates a pod of very many cards."""
    member = "gpuHours: unlimited\ngroup: g"
    entries = dict.fromkeys(("team_a", "team_b", "team_c"), member)
    pods = [held_pod("large", percent=900), held_pod("q", namespace="team-b", created_ms=T0 + 1)]
    holding.begin(*pods, **entries, **{"_group.g": HOLD.format(hours=1.5)})
    began_ms = holding.town.clock()
    used: Json = {"namespace": "team-c", "created_ms": began_ms, "started_ms": began_ms}
    holding.town.clock.turn(HOUR)
    holding.town.change("pods", gpu_pod("used", ended_ms=began_ms + HOUR, **used))

    assert holding.step() == ["q"]


def test_a_pod_waits_for_what_others_of_its_group_give_back(holding: Holding) -> None:
    """It keeps the group's other pods behind it while the period can pay it."""
    member = "gpuHours: unlimited\ngroup: g"
    waits = gpu_pod("waits", namespace="team-c", node="")
    entries = dict.fromkeys(("team_a", "team_b", "team_c"), member)
    pods = [held_pod("large", percent=300), held_pod("q", namespace="team-b", created_ms=T0 + 1)]
    holding.begin(waits, *pods, **entries, **{"_group.g": HOLD.format(hours=0.6)})

    assert holding.step() == []


def test_a_new_period_releases_the_pods_and_the_rate_is_bounded(holding: Holding) -> None:
    pods = [held_pod(f"p{index:02}", percent=1, created_ms=T0 + index) for index in range(MAX_AT_ONCE + 2)]
    busy = gpu_pod("busy", started_ms=T0, ended_ms=T0 + HOUR, created_ms=T0)
    holding.town.clock.turn(HOUR)
    holding.begin(busy, *pods, team_a="gpuHours: 1\nperiod: day\nonExhausted: hold")
    assert holding.step() == []

    holding.town.clock.turn(24 * HOUR)
    holding.town.tick()

    assert len(holding.step()) == MAX_AT_ONCE
    assert len(holding.step()) == 2


def waiting(number: int, reason: str = "", *gates: Json, scheduler: str = "") -> list[Json]:
    """Pods of another namespace without a node; ``reason``: why, by the last attempt of a scheduler."""
    pods = [gpu_pod(f"o{at}", node="", namespace="others", percent=1) for at in range(number)]
    for each in pods if scheduler else []:
        each["spec"]["schedulerName"] = scheduler
    if reason:
        condition = {"type": "PodScheduled", "status": "False", "reason": reason}
        for each in pods:
            each["status"] = {"phase": "Pending", "conditions": [condition]}
            each["spec"]["schedulingGates"] = list(gates)
    return pods


# pods of others, and whether none is released beside them
OTHERS = {
    "many": (waiting(MANY_UNTRIED + 1), True),
    "many that were behind a gate": (waiting(MANY_UNTRIED + 1, "SchedulingGated"), True),
    "many of our scheduler": (waiting(MANY_UNTRIED + 1, scheduler="bursar-scheduler"), True),
    "many of a scheduler that may not run": (waiting(MANY_UNTRIED + 1, scheduler="volcano"), False),
    "fewer": (waiting(MANY_UNTRIED), False),
    "many that fit nowhere": (waiting(MANY_UNTRIED + 1, "Unschedulable"), False),
    "many behind a gate": (waiting(MANY_UNTRIED + 1, "SchedulingGated", OTHER), False),
}


@pytest.mark.parametrize("case", OTHERS)
def test_none_is_released_while_schedulers_have_many_pods_to_try(holding: Holding, case: str) -> None:
    pods = [held_pod(f"p{index:02}", percent=1) for index in range(MAX_AT_ONCE)]
    others, pauses = OTHERS[case]
    holding.begin(*pods, *others, team_a=HOLD.format(hours=100))

    assert len(holding.step()) == (0 if pauses else MAX_AT_ONCE)


def test_pods_that_a_scheduler_has_tried_delay_no_releases_any_more(holding: Holding) -> None:
    pods, others = [held_pod(f"p{at:02}", percent=1) for at in range(40)], waiting(MANY_UNTRIED + 1)
    holding.begin(*pods, *others, team_a=HOLD.format(hours=100))
    assert holding.step() == []

    for each in waiting(MANY_UNTRIED + 1, "Unschedulable"):
        holding.town.hear("pods", each)
    holding.town.tick()

    assert len(holding.step()) == MAX_AT_ONCE


def test_others_delay_ten_thousand_releases_by_less_than_five_minutes(holding: Holding) -> None:
    """At first they go before for half a minute, then in one step of six; after a while as at first."""
    pods = [held_pod(f"p{at:03}", percent=1) for at in range((PAUSE_COST + 1) * MAX_AT_ONCE)]
    holding.begin(*pods, *waiting(MANY_UNTRIED + 1), team_a=HOLD.format(hours=100))
    pauses, often = MAX_CREDIT // PAUSE_COST, [MAX_AT_ONCE] * PAUSE_COST

    assert pauses * STEP_S == 30
    assert not any(holding.step() for _ in range(pauses))
    assert [len(holding.step()) for _ in range(PAUSE_COST + 2)] == [*often, 0, MAX_AT_ONCE]

    holding.town.tick()
    for _ in range(MAX_CREDIT):
        holding.releaser.step()
    holding.begin(held_pod("later", percent=1))
    assert not any(holding.step() for _ in range(pauses))
    assert holding.step() == ["later"]

    steps = 300 / STEP_S
    assert (steps * PAUSE_COST - MAX_CREDIT) / (PAUSE_COST + 1) * MAX_AT_ONCE >= 10_000


def test_a_pause_that_delays_no_release_takes_nothing_from_the_next(holding: Holding) -> None:
    """Pods wait for a refill for days, and kube-scheduler often has many to try meanwhile."""
    others = waiting(MANY_UNTRIED + 1)
    holding.begin(held_pod("h", percent=1), *others, team_a=HOLD.format(hours=0))
    pauses = MAX_CREDIT // PAUSE_COST
    assert not any(holding.step() for _ in range(2 * pauses))

    holding.town.change("configmaps", budgets(team_a=HOLD.format(hours=100)))

    assert not any(holding.step() for _ in range(pauses))
    assert holding.step() == ["h"]


def test_calls_are_under_way_together_and_one_without_an_answer_ends_the_step(holding: Holding) -> None:
    """So the rate does not depend on how long the API server takes for one call."""
    holding.waits = Barrier(CALLS_AT_ONCE, timeout=60)
    pods = [held_pod(f"p{index:02}", percent=1, created_ms=T0 + index) for index in range(3 * CALLS_AT_ONCE)]
    holding.begin(*pods, team_a=HOLD.format(hours=100))
    holding.releaser = holding.new_releaser(CALLS_AT_ONCE)
    names = [each["metadata"]["name"] for each in pods]

    holding.loses = True
    first = holding.step()
    holding.loses = False
    second = holding.step()

    assert first == names[:CALLS_AT_ONCE]
    assert second == names[CALLS_AT_ONCE:]
    assert sorted(holding.calls) == names


def test_schedulers_see_no_more_waiting_pods_than_the_budget_says(holding: Holding) -> None:
    pods = [held_pod(f"p{index}", how="turn", created_ms=T0 + index) for index in range(5)]
    holding.begin(gpu_pod("seen", node=""), *pods, team_a="gpuHours: unlimited\nmaxWaiting: 3")
    hold = holding.town.get("/v1/standings").get_json()["namespaces"]["team-a"]["hold"]

    first = holding.step()
    again = holding.step()
    holding.town.tick()
    third = holding.step()
    holding.town.change("pods", gpu_pod("seen", started_ms=T0))

    assert (hold, first, again, third) == ("turn", ["p0", "p1"], [], [])
    assert holding.step() == ["p2"]


def test_a_release_is_a_decision_about_the_pod_and_its_controller(holding: Holding) -> None:
    raw = held_pod("p", priority=3)
    raw["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]
    holding.begin(raw, team_a=HOLD.format(hours=100))

    assert holding.step() == ["p"]

    (found,) = holding.decisions
    assert (found.kind, found.reason, found.owner, found.name, found.uid) == (
        *("released", "Released", "Job/train"),
        *("p", "uid-p"),
    )
    assert found.figures == {
        "message": "The GPU budget of namespace team-a can pay this pod; it is no longer held.",
        "rateMilli": 1_000,
        "priority": 3,
        "waitedMs": found.at_ms - T0,
    }
    assert found.at_ms > T0


AHEAD = "1 held pod of the namespace is ahead"
WITHIN = "what is left within the caps of namespace and group"
SEEN = "fewer than 9 pods of the namespace to wait for a node (maxWaiting)"
COST = "0.3333 GPU-hours at once, for 600 s at the rate 2"
LEFT = "team-a has 0.3 GPU-hours of its budget left until 2026-12-01T00:00:00Z: 0.03333 are missing"
# how it is held, by whose scheduler it is placed, its budget
HELD_FOR = {
    # less is left than the pod needs, so its namespace is in budget
    "budget": ("budget", "", "gpuHours: 0.3\nonExhausted: hold", [f"needs {COST}; {LEFT}; {AHEAD}"]),
    "all": (
        "budget",
        "volcano",
        "gpuHours: 0.3\nonExhausted: hold\nmaxGPUs: 1\nmaxWaiting: 9",
        [f"needs {COST} and {SEEN} and {WITHIN}; {LEFT}; {AHEAD}"],
    ),
    "turn": ("turn", "", "gpuHours: unlimited\nmaxWaiting: 9", [f"needs {SEEN}; {AHEAD}"]),
    "cap": ("turn", "volcano", "gpuHours: unlimited\nmaxGPUs: 1", [f"needs {WITHIN}; {AHEAD}"]),
    "cap of a pod": (
        "turn",
        "volcano",
        "gpuHours: unlimited\nmaxGPUsPerPod: 1",
        [f"needs {WITHIN}; {AHEAD}"],
    ),
    "cap of the extender": ("turn", "", "gpuHours: unlimited\nmaxGPUs: 1", [f"needs its turn; {AHEAD}"]),
    "cap of the group": ("turn", "volcano", "gpuHours: unlimited\ngroup: lab", [f"needs {WITHIN}; {AHEAD}"]),
    "cap or turn": (
        "turn",
        "volcano",
        "gpuHours: unlimited\nmaxGPUs: 1\nmaxWaiting: 9",
        [f"needs {SEEN} and {WITHIN}; {AHEAD}"],
    ),
    "turn, and a cap of the extender": (
        "turn",
        "",
        "gpuHours: unlimited\nmaxGPUs: 1\nmaxWaiting: 9",
        [f"needs {SEEN}; {AHEAD}"],
    ),
    "nothing": ("turn", "volcano", "gpuHours: unlimited", [f"needs its turn; {AHEAD}"]),
}


@pytest.mark.parametrize("case", HELD_FOR)
def test_explain_says_what_a_held_pod_needs_and_its_place(holding: Holding, case: str) -> None:
    how, scheduler, entry, said = HELD_FOR[case]
    pods = [
        held_pod(name, how=how, created_ms=T0 + at, percent=200) for at, name in enumerate(("first", "p"))
    ]
    holding.begin(*pods, **{"team_a": entry, "_group.lab": "gpuHours: unlimited\nmaxGPUs: 1"})
    held = {"kind": "held", "reason": "OverBudget", "name": "p", "generate_name": "", "uid": "uid-p"}
    figures = {"standing": "OVER_BUDGET"} | ({"schedulerName": scheduler} if scheduler else {})
    post(holding.town, posted(**held, namespace="team-a", figures=figures))

    assert holding.town.get("/v1/explain/team-a/p").get_json()["waitsFor"] == said


def test_a_held_pod_that_reserves_nothing_needs_a_budget_that_is_not_used_up(holding: Holding) -> None:
    settings = {"_settings": "lookahead: 0s"}
    holding.begin(held_pod("p", created_ms=T0), team_a="gpuHours: 0\nonExhausted: hold", **settings)
    post(holding.town, posted(kind="held", reason="OverBudget", name="p", generate_name="", uid="uid-p"))

    needs, *_ = holding.town.get("/v1/explain/team-a/p").get_json()["waitsFor"]

    assert needs == "needs some of the budget to be left; 0 held pods of the namespace are ahead"


@pytest.mark.parametrize(("mode", "hours", "hold"), [("hold", 9, "budget"), ("deprioritize", 0, "turn")])
def test_with_turns_a_budget_that_holds_is_waited_for_too(
    holding: Holding, mode: str, hours: int, hold: str
) -> None:
    holding.begin(team_a=f"gpuHours: {hours}\nonExhausted: {mode}\nmaxWaiting: 3")

    assert holding.town.get("/v1/standings").get_json()["namespaces"]["team-a"]["hold"] == hold


def test_another_settlers_term_ends_the_releases(holding: Holding) -> None:
    holding.begin(held_pod("p"))
    old = holding.releaser
    holding.restart()

    with pytest.raises(EpochOverError):
        old.step()
    assert holding.gated() == {"p"}


class StandsStill:
    """A call during which the process stands still, and another settler starts."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    def wait(self) -> None:
        self._holding.town.resume()
        self._holding.town.clock.turn(QUIET_MS)


def test_a_releaser_that_stood_still_sends_no_further_call(holding: Holding) -> None:
    """The pods that it had chosen may be more than its successor's budget can pay."""
    pods = [held_pod(f"p{index}", percent=1, created_ms=T0 + index) for index in range(3)]
    holding.begin(*pods, team_a=HOLD.format(hours=100))
    old, holding.waits = holding.releaser, StandsStill(holding)

    released = holding.step()

    assert released == ["p0"]
    with pytest.raises(EpochOverError):
        old.step()
    assert holding.calls == ["p0"]


def test_new_pods_do_not_overtake_those_that_wait(holding: Holding) -> None:
    """`hold` of the standings is what the webhook acts on."""
    held = [held_pod("p", percent=100), held_pod("q", created_ms=T0 + 1)]
    holding.begin(*held, team_a=HOLD.format(hours=0.2))

    holding.step()
    holding.town.tick()
    table = holding.town.get("/v1/standings").get_json()["namespaces"]["team-a"]
    holding.town.change("pods", held[1], deleted=True)
    after = holding.town.get("/v1/standings").get_json()["namespaces"]["team-a"]

    assert (table["standing"], table["hold"]) == ("IN_BUDGET", "budget")
    assert "hold" not in after


def lookahead_of(pods: list[Json]) -> int:
    """What these pods together use within the lookahead, by their limits."""
    limits = [each["spec"]["containers"][0]["resources"]["limits"] for each in pods]
    return sum(10 * int(each["bursar.dev/gpu-percent"]) for each in limits) * LOOKAHEAD


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 100))]
)
def test_what_is_released_never_exceeds_what_can_be_paid_and_all_of_that_is_released(
    holding: Holding, seed: int
) -> None:
    """Random creations, deletions, lost answers, late watches and kills, against a count of our own."""
    turn, town = random.Random(seed), holding.town
    granted = turn.choice([3, 5, 10, 20]) * HOUR // 10 * GPU
    holding.begin(team_a=HOLD.format(hours=granted / GPU / HOUR))
    number = 0

    def pods(gated: bool) -> list[Json]:
        return [each for each in holding.pods() if (GATE in each["spec"]["schedulingGates"]) is gated]

    for _ in range(60):
        what = turn.choice(["create", "create", "step", "step", "tick", "late", "lost", "kill", "leave"])
        late = not holding.hears
        if what == "create":
            number += 1
            new = held_pod(f"p{number:02}", percent=turn.choice([10, 50, 100]), created_ms=T0 + number)
            town.hear("pods", new, unheard=late)
        elif what == "step" and holding.step():
            assert lookahead_of(pods(gated=False)) <= granted
        elif what == "tick":
            town.tick()
        elif what == "late":
            holding.hears = late
            if late:
                town.list_all()
        elif what == "lost":
            holding.loses = not holding.loses
        elif what == "kill":
            holding.restart()
        elif what == "leave" and holding.pods():
            town.hear("pods", turn.choice(holding.pods()), deleted=True, unheard=late)
    holding.hears = True
    holding.restart()
    while holding.step():
        town.tick()
    waiting = sorted(pods(gated=True), key=lambda each: str(each["metadata"]["name"]))
    assert not waiting or lookahead_of([*pods(gated=False), waiting[0]]) > granted


def test_what_goes_wrong_ends_no_releases_but_another_settlers_term_does(
    holding: Holding, capfd: pytest.CaptureFixture[str]
) -> None:
    faults: list[Exception] = [UnavailableError("gone"), ZeroDivisionError("a fault"), EpochOverError("over")]
    waits = Waits(9)

    def step() -> int:
        raise faults[len(waits.pauses_s) - 1]

    keep_releasing(step, waits)

    assert waits.pauses_s == [STEP_S, AWAY_S, AWAY_S]
    said = capfd.readouterr().err
    assert "event=release-failed error=gone" in said
    assert 'event=release-failed error="ZeroDivisionError: a fault"' in said
    assert "event=releaser-ends" in said


ANSWERS: dict[str, tuple[Reply, int]] = {
    "gone": (Answered(404, {"message": "no"}), SOON_MS),
    "refused": (Answered(422, {"message": "no"}), AWAY_MS),
    "failed": (Answered(500, {"message": "no"}), UNCLEAR_MS),
    "not sent": (Unsent("no"), UNCLEAR_MS),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_pod_that_could_not_be_released_is_tried_again(holding: Holding, case: str) -> None:
    reply, pause_ms = ANSWERS[case]
    holding.begin(held_pod("p"), team_a=HOLD.format(hours=1))
    holding.refuses = reply
    holding.step()
    holding.refuses = None

    holding.town.clock.turn(pause_ms - 1)
    early = holding.step()
    holding.town.clock.turn(1)

    assert (early, holding.step()) == ([], ["p"])


# pods of other schedulers, within a cap


def theirs(name: str, share: int = 50, **fields: Any) -> Json:
    """A held pod that another scheduler will place."""
    raw = held_pod(name, how="turn", percent=share, **fields)
    return {**raw, "spec": {**raw["spec"], "schedulerName": "volcano"}}


def test_pods_of_other_schedulers_are_released_within_the_caps_of_namespace_and_group(
    holding: Holding,
) -> None:
    """What is placed counts, whoever placed it, and what was released and has no node yet."""
    town = holding.town
    placed = gpu_pod("placed", percent=50, started_ms=T0)
    pods = [theirs(f"p{at}", created_ms=T0 + at) for at in range(4)]
    neighbour = theirs("neighbour", namespace="team-b", created_ms=T0 + 9)
    group = {"_group.lab": "gpuHours: unlimited\nmaxGPUs: 2"}
    own = "gpuHours: unlimited\ngroup: lab"
    holding.begin(placed, *pods, neighbour, team_a=f"{own}\nmaxGPUs: 1.5", team_b=own, **group)

    assert holding.step() == ["neighbour", "p0", "p1"]
    town.tick()
    assert holding.step() == []
    holding.restart()
    assert holding.step() == []

    town.hear("pods", gpu_pod("placed", percent=50, started_ms=T0, ended_ms=T0 + SECOND))
    town.tick()
    assert holding.step() == ["p2"]
    town.tick()
    assert holding.step() == []

    town.change("configmaps", budgets(team_a=f"{own}\nmaxGPUs: 1.5\nmode: observe", team_b=own, **group))
    assert holding.step() == ["p3"]


def test_what_claims_hold_counts_in_a_cap_as_cards_do(holding: Holding) -> None:
    town = holding.town
    town.hear("resourceslices", device_slice("gpu-0"))
    town.hear_all("resourceclaims")
    town.hear("resourceclaims", device_claim("c", allocated(), at_ms=T0))
    holding.begin(theirs("p"), team_a="gpuHours: unlimited\nmaxGPUs: 1.4")
    assert holding.step() == []

    town.change("resourceclaims", device_claim("c"))

    assert holding.step() == ["p"]


def test_a_pod_of_another_scheduler_that_a_cap_never_allows_keeps_no_other_behind(holding: Holding) -> None:
    caps = "gpuHours: unlimited\nmaxGPUs: 1\nmaxGPUsPerPod: 0.6"
    holding.begin(theirs("large", 80, priority=5), theirs("small"), theirs("next"), team_a=caps)

    assert holding.step() == ["next", "small"]
    holding.town.tick()
    assert holding.gated() == {"large"}
