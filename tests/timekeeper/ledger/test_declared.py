"""Pods that reserve the whole time that they declare. Real database and settler, an API server of dicts, a
clock turned by hand."""

import copy
import random
from dataclasses import dataclass
from typing import Any

import pytest

from tests.timekeeper.ledger.test_decisions import post, posted
from tests.timekeeper.ledger.test_holding import Holding, held_pod
from tests.timekeeper.worlds import (
    DAY,
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    node,
    placement,
)
from tests.worlds import terminated
from timekeeper.runtime.api_server import Answered

GRACE = 30 * SECOND
DECLARED = "gpuHours: {hours}\nperiod: {period}\nreserve: declared\nrequireDuration: true"


def declaring(name: str, seconds: int, *, percent: int = 100, **fields: Any) -> Json:
    """A pod as the webhook makes it where pods reserve their declared time."""
    raw = held_pod(name, percent=percent, **fields)
    raw["metadata"]["annotations"]["bursar.dev/declared"] = str(seconds)
    raw["spec"]["activeDeadlineSeconds"] = seconds
    return raw


def bound(raw: Json, at_ms: int, on: str = "n1") -> Json:
    """The released pod on the node's first card."""
    percent = int(raw["spec"]["containers"][0]["resources"]["limits"]["bursar.dev/gpu-percent"])
    after = copy.deepcopy(raw)
    after["spec"]["nodeName"] = on
    after["metadata"]["annotations"]["bursar.dev/devices"] = placement(percent)
    after["status"] = gpu_pod(bound_ms=at_ms)["status"]
    return after


def there(town: Town, name: str) -> Json:
    """The pod as the API server has it."""
    return next(each for each in town.objects["pods"].values() if each["metadata"]["name"] == name)


def stamp(at_ms: int) -> str:
    """A time as Kubernetes writes it."""
    return str(gpu_pod(created_ms=at_ms)["metadata"]["creationTimestamp"])


def ended(raw: Json, from_ms: int, at_ms: int) -> Json:
    """The bound pod after it has run."""
    after = copy.deepcopy(raw)
    after["status"] |= {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "main", "state": terminated(stamp(from_ms), stamp(at_ms))}],
    }
    return after


@pytest.fixture
def holding(town: Town) -> Holding:
    return Holding(town)


def balance(town: Town, namespace: str = "team-a") -> Json:
    found: Json = town.get(f"/v1/balances/{namespace}").get_json()
    return found | {"spent": found["posted"] + found["pending"]}


def test_a_pod_reserves_its_time_and_grace_from_its_release_to_its_end(holding: Holding) -> None:
    """Two hours pay one pod of an hour and its grace, and not a second one; the first ends early."""
    town, whole = holding.town, GPU * (HOUR + GRACE)
    first, second = declaring("p", 3_600), declaring("q", 3_600, created_ms=T0 + 1)
    holding.begin(first, second, team_a=DECLARED.format(hours=2, period="month"))
    assert balance(town)["reserved"] == 0

    assert holding.step() == ["p"]
    town.tick()
    assert (balance(town)["reserved"], holding.step()) == (whole, [])
    start_ms = town.clock() // 1000 * 1000
    on_node = bound(there(town, "p"), start_ms)
    town.change("pods", on_node)
    town.advance(20 * MINUTE)
    now = balance(town)
    assert now["spent"] > 19 * MINUTE * GPU
    assert now["spent"] + now["reserved"] == whole
    assert holding.step() == []

    town.change("pods", ended(on_node, start_ms, start_ms + 20 * MINUTE))

    assert (balance(town)["spent"], balance(town)["reserved"]) == (20 * MINUTE * GPU, 0)
    assert holding.step() == ["q"]


def test_a_pod_that_takes_all_that_is_left_is_in_budget(holding: Holding) -> None:
    """And a pod that costs more than the grant waits: the law leaves no other way. It holds none back."""
    town = holding.town
    fits, never = declaring("fits", 3_570), declaring("never", 3_600, created_ms=T0 - 1)
    holding.begin(fits, never, team_a=DECLARED.format(hours=1, period="month"))

    assert holding.step() == ["fits"]
    town.tick()

    assert (balance(town)["remaining"], town.standing()) == (0, "IN_BUDGET")
    town.change("pods", fits, deleted=True)
    assert (balance(town)["reserved"], holding.step()) == (0, [])
    (waits,) = town.get("/v1/held").get_json()["held"]
    assert (waits["pod"], waits["lengthMs"], waits["earliest"]) == ("never", HOUR + GRACE, None)


def test_each_period_holds_its_part_and_the_next_is_not_promised_twice(holding: Holding) -> None:
    """Ten minutes before the hour ends, a grant of half an hour pays one of two pods of 20 minutes."""
    town = holding.town
    town.clock.turn(50 * MINUTE)
    pods = [declaring(name, 1_200, created_ms=T0 + index) for index, name in enumerate("pq")]
    holding.begin(*pods, team_a=DECLARED.format(hours=0.5, period="hour"))

    assert holding.step() == ["p"]
    town.tick()
    start_ms = town.clock() // 1000 * 1000
    town.change("pods", bound(there(town, "p"), start_ms))
    this = balance(town)["spent"] + balance(town)["reserved"]
    assert this == GPU * (T0 + HOUR - start_ms)
    town.advance(15 * MINUTE)

    later = balance(town)["spent"] + balance(town)["reserved"]
    assert later == GPU * (start_ms + 20 * MINUTE + GRACE - T0 - HOUR)


def test_a_kill_between_the_reservation_and_the_release_changes_nothing(holding: Holding) -> None:
    """The next settler counts the reservation before it removes the gate, and removes it."""
    town = holding.town
    pods = [declaring(name, 3_000, created_ms=T0 + index) for index, name in enumerate("pq")]
    holding.begin(*pods, team_a=DECLARED.format(hours=1, period="month"))
    holding.refuses = Answered(500, {"message": "not now"})
    assert holding.step() == []

    holding.restart()
    holding.refuses = None

    assert balance(town)["reserved"] == GPU * (3_000 * SECOND + GRACE)
    assert holding.step() == ["p"]
    town.tick()
    assert holding.step() == []


def test_a_gate_that_something_else_removed_is_counted_all_the_same(holding: Holding) -> None:
    raw = declaring("p", 3_600)
    del raw["spec"]["schedulingGates"]
    holding.begin(raw, team_a=DECLARED.format(hours=2, period="month"))

    assert balance(holding.town)["reserved"] == GPU * (HOUR + GRACE)
    holding.restart()
    assert balance(holding.town)["reserved"] == GPU * (HOUR + GRACE)


@dataclass
class Truth:
    """What a pod may use, by a count of the test's own. ``rate``: its rate once it is bound, before that the
    highest; times in milliseconds."""

    raw: Json
    namespace: str
    length: int
    rate: int
    start: int | None = None
    end: int | None = None

    def most(self, begin: int, until: int, now: int) -> int:
        """What it has used, or may use, of this span of time."""
        if self.start is None:
            return self.rate * max(0, min(self.length, until - max(begin, now)))
        end = self.start + self.length if self.end is None else self.end
        return self.rate * max(0, min(end, until) - max(self.start, begin))


class Law:
    """Random lives of pods that keep their declared time, in two namespaces of one group. A card of n2 costs
    twice one of n1."""

    def __init__(self, holding: Holding, seed: int) -> None:
        self.turn, self.holding, self.town = random.Random(seed), holding, holding.town
        self.pods: dict[str, Truth] = {}
        self.period = self.turn.choice([HOUR, DAY])
        hours = self.turn.choice([0.3, 0.5, 1, 2]) * self.period / HOUR
        amounts = {"team-a": hours, "team-b": hours / 2, "group": 1.2 * hours}
        self.granted = {name: round(each * 1000) * GPU * HOUR // 1000 for name, each in amounts.items()}
        word = "hour" if self.period == HOUR else "day"
        entries = {
            name.replace("-", "_"): f"{DECLARED.format(hours=round(amounts[name], 3), period=word)}\ngroup: g"
            for name in ("team-a", "team-b")
        }
        group = f"gpuHours: {round(amounts['group'], 3)}\nperiod: {word}"
        self.town.clock.turn(self.turn.randrange(self.period))
        given = budgets(**entries, **{"_group.g": group, "_settings": "weights: {A100: 1, H100: 2}"})
        nodes = (("nodes", node()), ("nodes", node("n2", model="H100")))
        self.town.begin(*nodes, ("configmaps", given))
        for _ in range(8):
            self.create()
        self.town.tick()

    def create(self) -> None:
        """A pod that asks for up to a period and a half, on any card or on a cheap one."""
        name = f"p{len(self.pods):02}"
        namespace, cheap = self.turn.choice(["team-a", "team-b"]), self.turn.random() < 0.5
        percent = self.turn.choice([10, 50, 100])
        most = self.turn.choice([self.period // 10, self.period // 3, 3 * self.period // 2])
        seconds = self.turn.randrange(30, most // SECOND)
        raw = declaring(name, seconds, percent=percent, namespace=namespace, created_ms=T0 + len(self.pods))
        if cheap:
            raw["metadata"]["annotations"]["bursar.dev/gpu-models"] = "A100"
        self.pods[name] = Truth(raw, namespace, seconds * SECOND + GRACE, 10 * percent * (1 if cheap else 2))
        self.town.hear("pods", raw)

    def released(self) -> list[tuple[str, Truth]]:
        """Those without a gate, by the API server."""
        return [(name, each) for name, each in self.pods.items() if name not in self.holding.gated()]

    def bind(self) -> None:
        waiting = [each for _, each in self.released() if each.start is None]
        if not waiting:
            return
        pod = self.turn.choice(waiting)
        raw = there(self.town, pod.raw["metadata"]["name"])
        models = raw["metadata"]["annotations"].get("bursar.dev/gpu-models")
        on = "n1" if models else self.turn.choice(["n1", "n2"])
        pod.start = self.town.clock() // 1000 * 1000
        pod.rate = pod.rate // (2 if on == "n1" and not models else 1)
        pod.raw = bound(raw, pod.start, on)
        self.town.hear("pods", pod.raw)

    def finish(self, pod: Truth, at_ms: int) -> None:
        pod.end = at_ms
        pod.raw = ended(pod.raw, pod.start or 0, at_ms)
        self.town.hear("pods", pod.raw)

    def time_passes(self) -> None:
        """No pod outlives its declared time and grace; nodes may be silent."""
        self.town.clock.turn(self.turn.choice([SECOND, MINUTE, self.period // 7, self.period // 2]))
        for _, each in self.released():
            if each.start is not None and each.end is None:
                last = each.start + each.length
                if last <= self.town.clock() or self.turn.random() < 0.1:
                    most = min(last, self.town.clock()) // 1000
                    self.finish(each, self.turn.choice([most, (each.start // 1000 + most) // 2]) * 1000)
        if self.turn.random() < 0.7:
            self.town.node_heard()
            self.town.node_heard("n2")

    def check(self, with_rest: bool) -> None:
        """The law, for the present and every earlier period, of each account; and what REST says of it."""
        now = self.town.clock()
        first, last = T0 // self.period, now // self.period
        for name, granted in self.granted.items():
            pods = [each for _, each in self.released() if name in (each.namespace, "group")]
            for period in range(first, last + 1):
                span = period * self.period, (period + 1) * self.period
                used = sum(each.most(*span, now if period == last else 2**60) for each in pods)
                assert used <= granted, (name, period)
            if with_rest and name != "group":
                said = balance(self.town, name)
                assert said["spent"] + said["reserved"] <= granted

    def act(self) -> None:
        """One of these; a tick does not follow each."""
        acts = ["create", "step", "step", "bind", "bind", "time", "time", "kill", "lost", "refused"]
        what = self.turn.choice(acts)
        if what == "create":
            self.create()
        elif what == "step":
            self.holding.step()
        elif what == "bind":
            self.bind()
        elif what == "time":
            self.time_passes()
        elif what == "lost":
            self.holding.loses = not self.holding.loses
        elif what == "kill":
            self.holding.restart()
        elif what == "refused":
            self.holding.refuses = Answered(403, {"message": "no"})
            self.holding.step()
            self.holding.refuses = None
            self.holding.step()
        if self.turn.random() < 0.7:
            self.town.tick()


@pytest.mark.parametrize(
    "seed", [0, 56, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 60) if seed != 56)]
)
def test_what_is_reserved_and_charged_never_exceeds_what_was_granted(holding: Holding, seed: int) -> None:
    """The law: for pods that keep their declared time and grace, whatever is created, bound, ended early,
    killed, and however the periods lie."""
    law, index = Law(holding, seed), 0
    while index < 70 or not any(pod.end is not None for pod in law.pods.values()):
        law.act()
        law.check(with_rest=index % 5 == 0)
        index += 1
        assert index < 500


def test_what_is_free_again_is_used(holding: Holding) -> None:
    """Nothing is reserved for ever: pods of half a period run one after the other."""
    town, order = holding.town, []
    pods = [declaring(f"p{index}", 1_700, created_ms=T0 + index) for index in range(4)]
    holding.begin(*pods, team_a=DECLARED.format(hours=0.5, period="hour"))
    for _ in range(4):
        order += holding.step()
        town.tick()
        start_ms = town.clock() // 1000 * 1000
        on_node = bound(there(town, order[-1]), start_ms)
        town.change("pods", on_node)
        town.advance(HOUR)
        town.change("pods", ended(on_node, start_ms, start_ms + 1_700 * SECOND))

    assert order == ["p0", "p1", "p2", "p3"]


def test_the_standings_hold_every_pod_and_explain_says_what_it_waits_for(holding: Holding) -> None:
    """A pod that is held has the webhook's decision; after its release the release's."""
    town = holding.town
    budget = DECLARED.format(hours=2, period="month")
    holding.begin(
        *(declaring(name, 5_400, created_ms=T0 + at) for at, name in enumerate("pq")), team_a=budget
    )
    entry = town.get("/v1/standings").get_json()["namespaces"]["team-a"]
    figures = {"declaredMs": 5_400_000, "standing": "IN_BUDGET"}
    for name in "pq":
        held = {"kind": "held", "reason": "DeclaredTime", "name": name, "generate_name": ""}
        post(town, posted(**held, uid=f"uid-{name}", namespace="team-a", figures=figures))

    assert holding.step() == ["p"]
    town.tick()

    told = town.get("/v1/explain/team-a/q").get_json()
    assert (entry["hold"], entry["reserve"], entry["requireDuration"]) == ("budget", "declared", True)
    assert told["steps"][0]["sentence"] == (
        "Created with the scheduling gate bursar.dev/budget: its budget reserves the whole time that it "
        "declares, 5400 s and its grace period, before it is released."
    )
    assert told["waitsFor"] == [
        "needs 1.508 GPU-hours at once, for 5430 s of declared time and grace period at the rate 1; team-a "
        "has 0.4917 GPU-hours of its budget left until 2026-12-01T00:00:00Z: 1.017 are missing; 0 held pods "
        "of the namespace are ahead",
    ]
    (said,) = [each.message for each in town.pod_notices if each.pod.name == "p"]
    assert "can pay it: 1.508 GPU-hours at once, for 5430 s of declared time and grace period at the " in said
