"""Gangs at the releaser: paid together, released in one step, and gone on with where another was killed. Real
database and settler, an API server of dicts; the extender's part is a few lines."""

import copy
import itertools
import json
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_decisions import post, posted
from tests.timekeeper.ledger.test_holding import HOLD, Holding, held_pod
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, placement
from timekeeper.accounts.held.gangs import (
    AskForCards,
    GangMember,
    OpenGates,
    WaitFor,
    WaitingGang,
    let_go,
    next_step,
)
from timekeeper.core.gangs import Gang
from timekeeper.runtime.api_server import Answered
from timekeeper.settler.gang_starts import (
    AGAIN_MS,
    TOGETHER_MS,
    Call,
    GangAnswer,
    GangStarts,
    answer_of,
    body_of,
)
from timekeeper.settler.releaser import MANY_UNTRIED, MAX_AT_ONCE, Releaser

ONE_DATABASE = "decisions about values; test_holding has the same releaser"

DEADLINE_MS = 60 * SECOND
FAILED = "bursar_gang_failed_starts_total"


def member(name: str, size: int = 3, gang: str = "g", how: str = "turn", **fields: Any) -> Json:
    """A held pod of a gang, with whole cards unless the fields say else."""
    raw = held_pod(name, how=how, **fields)
    raw["metadata"]["annotations"] |= {"bursar.dev/gang": gang, "bursar.dev/gang-size": str(size)}
    return raw


class Gangs(Holding):
    """``fits``: whether there are cards for all that the extender is asked for."""

    fits, where = True, ""

    def new_releaser(self, at_once: int = 1, gangs: GangStarts | None = None) -> Releaser:
        self.asked: list[int] = []
        self.told: list[str] = []
        self.told_of: list[tuple[Any, str]] = []  # Events on controllers
        gangs = gangs or GangStarts(
            self.reserve,
            lambda _namespace, _name, _uid, _reason, note: self.told.append(note),
            self.town.clock,
            self.decisions.append,
            submit=self.submit,
            deadline_ms=DEADLINE_MS,
            report_on=lambda regarding, _reason, note: self.told_of.append((dict(regarding), note)),
        )
        return super().new_releaser(at_once, gangs)

    @staticmethod
    def submit(call: Call) -> "Future[GangAnswer | None]":
        done: Future[GangAnswer | None] = Future()
        done.set_result(call())
        return done

    def reserve(self, asked: AskForCards, epoch: int, until_ms: int) -> GangAnswer:
        self.asked.append(len(asked.uids))
        if not self.fits:
            return GangAnswer(0, "2 of 3 members fit; 1 cards missing")
        for raw in self.pods():
            if raw["metadata"]["uid"] in asked.uids:
                has_cards = reserved(raw, epoch, until_ms, self.town.clock())
                self.town.hear("pods", has_cards, unheard=not self.hears)
        return GangAnswer(len(asked.uids), where=self.where)

    def steps(self, count: int = 4) -> list[list[str]]:
        """What each of these steps released, half a second apart, with a tick before each."""
        found = []
        for _ in range(count):
            self.town.tick()
            found.append(self.step())
            self.town.clock.turn(500)
        return found


def reserved(raw: Json, epoch: int, until_ms: int, now_ms: int) -> Json:
    """The pod with cards reserved for it."""
    said = json.loads(placement()) | {
        "node": "n1",
        "until": iso(until_ms),
        "free": iso(now_ms),
        "epoch": epoch,
    }
    after = copy.deepcopy(raw)
    condition = {
        "type": "bursar.dev/CardsHeld",
        "status": "True",
        "reason": "Gang",
        "message": json.dumps(said),
    }
    after["status"]["conditions"] = [condition | {"lastTransitionTime": iso(now_ms // 1000 * 1000)}]
    return after


@pytest.fixture
def gangs(town: Town) -> Gangs:
    return Gangs(town)


def test_a_gang_is_released_in_one_step_once_it_has_cards_for_all(gangs: Gangs) -> None:
    gangs.begin(member("a"), member("b"))
    assert gangs.steps() == [[]] * 4
    assert gangs.asked == []
    assert gangs.told[-1] == "Gang g starts whole: 2 of 3 members exist."

    gangs.fits = False
    gangs.town.hear("pods", member("c"))
    assert gangs.steps() == [[]] * 4
    assert gangs.told[-1] == "Gang g starts whole: 3 of 3 members exist; 2 of 3 members fit; 1 cards missing."

    gangs.fits = True
    gangs.town.clock.turn(AGAIN_MS)
    assert gangs.steps() == [[], ["a", "b", "c"], [], []]


def test_what_a_gang_waits_for_is_in_the_explanation(gangs: Gangs) -> None:
    gangs.begin(member("a"))
    gangs.steps()

    (decision,) = [each for each in gangs.decisions if each.kind == "gang"]
    assert decision.figures == {
        "message": "Gang g starts whole: 1 of 3 members exist.",
        "size": 3,
        "exist": 1,
        "bound": 0,
    }


@pytest.mark.parametrize("how", ["turn", "budget"])
def test_a_budget_that_pays_for_two_of_three_releases_none(gangs: Gangs, how: str) -> None:
    """Ten minutes of a card for each: 0.4 hours pay for two, and 0.5 for three."""
    pods = [member(name, how=how, created_ms=T0 - HOUR) for name in "abc"]
    gangs.begin(*pods, team_a=HOLD.format(hours=0.4))
    assert gangs.steps() == [[]] * 4
    assert gangs.asked == []
    assert gangs.told[-1] == (
        "Gang g starts whole: 3 of 3 members exist; the budget cannot pay all of them now."
    )

    gangs.town.change("configmaps", budgets(team_a=HOLD.format(hours=0.5)))

    assert ["a", "b", "c"] in gangs.steps()
    gangs.town.tick()
    account = gangs.town.get("/v1/balances/team-a").get_json()
    assert account["reserved"] == (3 * GPU * 10 * MINUTE if how == "budget" else 0)


def leader() -> Json:
    """The first of its gang, and what it tells of two that follow, of two jobs that are alike."""
    first = member("a", size=1, created_ms=T0 - HOUR)
    template = {"spec": {"containers": first["spec"]["containers"]}}
    told = json.dumps([{"count": 1, "template": template}] * 2)
    first["metadata"]["annotations"]["bursar.dev/gang-late"] = told
    return first


CANNOT = "Gang g starts whole: 1 of 1 members exist, and 2 come later; the budget cannot pay all of them now."


def test_a_budget_must_pay_for_those_that_follow_too(gangs: Gangs) -> None:
    """Ten minutes of a card for the first and for each of two that do not exist yet."""
    gangs.begin(leader(), team_a=HOLD.format(hours=0.4))
    assert gangs.steps() == [[]] * 4
    assert gangs.asked == []
    assert gangs.told[-1] == CANNOT

    gangs.town.change("configmaps", budgets(team_a=HOLD.format(hours=0.5)))

    assert ["a"] in gangs.steps()


def follower(name: str, card: int, gang: str = "g", **fields: Any) -> Json:
    return gpu_pod(name, card=card, started_ms=T0, annotations={"bursar.dev/gang": gang}, **fields)


@pytest.mark.parametrize(
    ("others", "hours", "starts"),
    [
        ({}, 0.6, True),
        ({"gang": "other"}, 0.6, False),
        ({"percent": 50}, 0.6, False),
        ({"namespace": "team-b"}, 0.4, False),
    ],
)
def test_a_budget_pays_once_for_those_that_follow_and_run_already(
    gangs: Gangs, others: Json, hours: float, starts: bool
) -> None:
    """Three cards for ten minutes are half an hour; two that run have theirs, whatever their gang is."""
    there = [follower("w0", 0, **others), follower("w1", 1, **others)]
    gangs.begin(leader(), *there, team_a=HOLD.format(hours=hours))

    assert (["a"] in gangs.steps()) == starts


def test_one_that_follows_and_runs_counts_once(gangs: Gangs) -> None:
    gangs.begin(leader(), follower("w0", 0), team_a=HOLD.format(hours=0.45))

    assert gangs.steps() == [[]] * 4


def test_those_that_follow_count_again_once_they_end(gangs: Gangs) -> None:
    gangs.begin(leader(), follower("w0", 0), follower("w1", 1), team_a=HOLD.format(hours=0.4))
    gangs.steps()
    assert gangs.told[-1] == CANNOT

    gangs.town.hear("pods", follower("w0", 0, ended_ms=T0))
    gangs.town.hear("pods", follower("w1", 1, ended_ms=T0))
    gangs.steps()
    assert gangs.told[-1] == CANNOT

    gangs.town.change("configmaps", budgets(team_a=HOLD.format(hours=0.55)))
    assert ["a"] in gangs.steps()


class Following(Gangs):
    """``times``: until when each call asked for cards of those that follow, and of those that exist."""

    late_ms = 0

    def new_releaser(self, at_once: int = 1, gangs: GangStarts | None = None) -> Releaser:
        self.times: list[tuple[int, int]] = []
        starts = GangStarts(
            self.reserve, lambda *_: None, self.town.clock, submit=self.submit, late_ms=self.late_ms
        )
        return super().new_releaser(at_once, starts)

    def reserve(self, asked: AskForCards, epoch: int, until_ms: int) -> GangAnswer:
        self.times.append((asked.late_ms, until_ms))
        return GangAnswer(0)


@pytest.mark.parametrize("late_ms", [0, 5 * MINUTE])
def test_cards_of_those_that_follow_are_kept_for_longer(
    town: Town, monkeypatch: pytest.MonkeyPatch, late_ms: int
) -> None:
    monkeypatch.setattr(Following, "late_ms", late_ms)
    gangs = Following(town)
    gangs.begin(member("a", size=1))
    gangs.steps()

    (asked_ms, until_ms), *_ = gangs.times
    assert asked_ms == (until_ms + late_ms if late_ms else 0)


class Picky(Gangs):
    """``asked_for``: first pods of the gangs for which cards were looked for; only one of them gets any."""

    def new_releaser(self, at_once: int = 1, gangs: GangStarts | None = None) -> Releaser:
        self.asked_for: list[str] = []
        self.starts = GangStarts(
            self.reserve,
            lambda *told: self.told.append(told[-1]),
            self.town.clock,
            submit=self.submit,
        )
        return super().new_releaser(at_once, self.starts)

    def reserve(self, asked: AskForCards, epoch: int, until_ms: int) -> GangAnswer:
        of = {raw["metadata"]["uid"]: raw["metadata"]["name"] for raw in self.pods()}
        self.asked_for.append(of[asked.uids[0]])
        self.fits = self.asked_for[-1] == "late"
        return super().reserve(asked, epoch, until_ms)


def single(name: str, **fields: Any) -> Json:
    """A gang of one pod."""
    return member(name, size=1, gang=name, percent=1, **fields)


# each is looked for again after five seconds; more of them than there are looks meanwhile
NEVER = [single(f"n{at:02}", priority=1, created_ms=T0 - HOUR + at * SECOND) for at in range(30)]


def test_gangs_that_never_fit_do_not_keep_those_of_another_namespace_waiting(town: Town) -> None:
    gangs = Picky(town)
    gangs.begin(*NEVER)
    gangs.steps(20)
    gangs.town.hear("pods", single("late", namespace="team-b", priority=1))

    found = gangs.steps(12)

    assert ["late"] in found
    assert gangs.asked_for.index("late") > 5
    assert len(gangs.asked_for) > gangs.asked_for.index("late") + 1  # the others go on
    assert len(gangs.starts.had_turns()) <= 1  # each turn is told once


def test_gangs_that_never_fit_do_not_keep_those_of_their_own_namespace_waiting(town: Town) -> None:
    """Of a lower priority. Each of the others has at most one more look before it, and goes on after it."""
    gangs = Picky(town)
    gangs.begin(*NEVER)
    gangs.steps(5)
    gangs.town.hear("pods", single("late"))

    found = gangs.steps(90)

    assert ["late"] in found
    names, at = [each["metadata"]["name"] for each in NEVER], gangs.asked_for.index("late")
    assert gangs.asked_for[:30] == names
    assert max(Counter(gangs.asked_for[:at]).values()) == 2
    assert set(gangs.asked_for[at + 1 :]) == {*names}


def test_a_gang_that_cannot_be_paid_keeps_no_other_from_its_next_look(town: Town) -> None:
    """Ten minutes of a card: 0.4 hours pay for one whole card, and not for three."""
    gangs = Picky(town)
    dear = [member(name, created_ms=T0) for name in "abc"]
    gangs.begin(member("one", 1, "one", created_ms=T0 - HOUR), *dear, team_a=HOLD.format(hours=0.4))

    gangs.steps(24)

    assert gangs.asked_for == ["one"] * 3
    assert any("the budget cannot pay all of them now" in each for each in gangs.told)


def test_of_a_gang_that_was_not_reached_it_is_not_said_that_it_cannot_be_paid(town: Town) -> None:
    """A step chooses among so many."""
    gangs = Picky(town)
    gangs.begin(*NEVER)

    gangs.steps(3)

    assert len(NEVER) > MAX_AT_ONCE
    assert not any("the budget cannot pay" in each for each in gangs.told)


def test_the_extender_is_asked_for_them_by_a_field() -> None:
    asked = AskForCards(("a",), 1, late_ms=70_000)

    assert body_of(asked, 7, 60_000)["late"] == 70_000
    assert "late" not in body_of(AskForCards(("a",), 1), 7, 60_000)  # an extender before knows no such field


def test_no_limit_of_single_releases_splits_a_gang(gangs: Gangs) -> None:
    """Neither how many are released at once, nor how many pods kube-scheduler has to try."""
    count = MAX_AT_ONCE + 5
    others = [gpu_pod(f"u{at}", node="", percent=1) for at in range(MANY_UNTRIED + 1)]
    pods = [member(f"m{at:02}", count, percent=1) for at in range(count)]
    gangs.begin(*others, *pods, held_pod("single", how="turn", percent=1))

    found = gangs.steps()

    assert [len(each) for each in found] == [0, count, 0, 0]  # and none is released singly meanwhile


def test_a_releaser_that_is_killed_between_two_gates_is_followed_by_one_that_goes_on(gangs: Gangs) -> None:
    gangs.begin(*(member(name) for name in "abc"))
    assert gangs.steps(1) == [[]]
    first = gangs.pods()[0]
    opened = copy.deepcopy(first)
    opened["spec"]["schedulingGates"] = []
    gangs.town.hear("pods", opened)  # and the process is gone

    gangs.restart()

    assert gangs.steps(1) == [["b", "c"]]
    assert gangs.asked == []


def test_gates_that_the_api_server_does_not_remove_are_tried_again(gangs: Gangs) -> None:
    gangs.begin(*(member(name) for name in "abc"))
    gangs.steps(1)
    gangs.refuses = Answered(500, {"message": "away"})
    assert gangs.steps(1) == [[]]
    gangs.refuses = None

    gangs.town.clock.turn(30 * SECOND)

    assert ["a", "b", "c"] in gangs.steps(10)


def test_members_that_say_different_sizes_start_none(gangs: Gangs) -> None:
    gangs.begin(member("a", 2), member("b", 3), member("c", 3))

    assert gangs.steps() == [[]] * 4
    assert gangs.told[-1] == (
        "Gang g starts whole: metadata.annotations[bursar.dev/gang-size]: its members say 2 and 3;"
        " allowed: one number for all."
    )


def test_members_that_say_different_topologies_start_none(gangs: Gangs) -> None:
    pods = [member(name, 2) for name in "ab"]
    pods[0]["metadata"]["annotations"]["bursar.dev/gang-topology"] = "example.com/rack"
    gangs.begin(*pods)

    assert gangs.steps() == [[]] * 4
    assert gangs.told[-1] == (
        "Gang g starts whole: metadata.annotations[bursar.dev/gang-topology]: its members say "
        "example.com/rack and none; allowed: one label for all."
    )


def pairs(*names: str) -> list[Json]:
    """The members of gangs of two of these names, in this order of age."""
    return [
        member(f"{name}{at}", 2, gang=name, created_ms=T0 - HOUR + SECOND * place)
        for place, name in enumerate(names)
        for at in (0, 1)
    ]


def test_gangs_that_come_at_once_get_cards_one_right_after_another_and_start_in_one_step(
    gangs: Gangs,
) -> None:
    gangs.begin(*pairs("g", "h", "i"))

    assert gangs.steps(2) == [[], ["g0", "g1", "h0", "h1", "i0", "i1"]]
    assert gangs.asked == [2, 2, 2]


def test_after_a_gang_that_gets_no_cards_no_other_is_asked_for_at_once(gangs: Gangs) -> None:
    gangs.fits = False
    gangs.begin(*pairs("g", "h", "i"))

    found = []
    for _ in range(3):
        gangs.steps(1)
        found.append(len(gangs.asked))

    assert found == [1, 2, 3]


def test_of_two_gangs_of_which_the_budget_pays_one_the_other_is_not_asked_for(gangs: Gangs) -> None:
    """Ten minutes of a card for each pod: 0.4 hours pay for two."""
    gangs.begin(*pairs("g", "h"), team_a=HOLD.format(hours=0.4))

    assert gangs.steps(2) == [[], ["g0", "g1"]]
    assert gangs.asked == [2]


def test_calls_that_come_too_late_are_left_out_and_decided_anew(gangs: Gangs) -> None:
    """The first one takes longer than calls may wait."""

    def slow(asked: AskForCards, epoch: int, until_ms: int) -> GangAnswer:
        gangs.town.clock.turn(TOGETHER_MS + 1)
        return gangs.reserve(asked, epoch, until_ms)

    calls: list[tuple[Call, Future[GangAnswer | None]]] = []

    def later(call: Call) -> "Future[GangAnswer | None]":
        calls.append((call, Future()))
        return calls[-1][1]

    clock = gangs.town.clock
    gangs.begin(*pairs("g", "h"))
    starts = GangStarts(slow, lambda *_: None, clock, submit=later, deadline_ms=DEADLINE_MS)
    gangs.releaser = gangs.new_releaser(gangs=starts)
    gangs.steps(1)
    for call, future in calls:
        future.set_result(call())
    (first, second) = (future.result() for _, future in calls)

    assert first == GangAnswer(2)
    assert second is None
    assert gangs.steps(2) == [["g0", "g1"], []]
    assert len(calls) == 3


def test_where_its_cards_are_is_told(gangs: Gangs) -> None:
    gangs.where = "on 2 nodes in rack r2"
    gangs.begin(*(member(name) for name in "abc"))
    gangs.steps(2)

    assert gangs.told[-1] == (
        "Gang g starts whole: 3 members have cards on 2 nodes in rack r2, and their gates are being removed."
    )


def test_the_extenders_answer_is_a_sentence() -> None:
    lack = {"reserved": 0, "missing": 4, "cards": 4, "near": "rack r2", "why": "no rack has room"}

    assert answer_of(lack, 16) == GangAnswer(
        0, "12 of 16 members fit in rack r2; 4 cards missing; no rack has room", cards=4
    )
    assert answer_of({**lack, "members": 20}, 16).why.startswith("16 of 20 members fit")
    assert answer_of({"reserved": 2, "where": "on 1 node", "why": ""}, 2) == GangAnswer(2, "", "on 1 node")


def test_a_gang_without_cards_keeps_no_single_pod_of_its_namespace_waiting(gangs: Gangs) -> None:
    gangs.fits = False
    pods = [member(name, 2, created_ms=T0 - HOUR) for name in "ab"]
    gangs.begin(*pods, held_pod("single", created_ms=T0), team_a=HOLD.format(hours=0.4))

    assert ["single"] in gangs.steps()


def test_a_gang_that_no_grant_can_pay_keeps_no_single_pod_waiting(gangs: Gangs) -> None:
    pods = [member(name, created_ms=T0 - HOUR) for name in "abc"]
    gangs.begin(*pods, held_pod("single", created_ms=T0), team_a=HOLD.format(hours=0.4))

    assert ["single"] in gangs.steps()
    assert gangs.asked == []


def test_no_single_pod_takes_what_a_gang_is_about_to_use(gangs: Gangs) -> None:
    """It pays for three: two that have cards reserved, and one more, but not for four."""
    pods = [member(name, 2, how="budget", created_ms=T0 - HOUR) for name in "ab"]
    gangs.begin(*pods, held_pod("c"), held_pod("d"), team_a=HOLD.format(hours=0.6))

    gangs.hears = False  # the watch is late

    meanwhile = gangs.steps()
    gangs.hears = True

    assert meanwhile == [["c"], [], [], []]
    assert ["a", "b"] in gangs.steps(10)


def test_a_start_that_came_to_nothing_is_tried_again_later_each_time(gangs: Gangs) -> None:
    """kube-scheduler binds none of them: nothing is evicted, and all have no gate any more."""
    gangs.begin(*(member(name) for name in "abc"))
    starts, at = [], gangs.town.clock()
    while gangs.town.clock() < at + 20 * MINUTE:
        before = len(gangs.asked)
        gangs.steps(1)
        if len(gangs.asked) > before:
            starts.append((gangs.town.clock() - at) // SECOND)
        gangs.town.clock.turn(2_500)

    pauses = [later - earlier - DEADLINE_MS // SECOND for earlier, later in itertools.pairwise(starts)]
    assert [round(each, -1) for each in pauses[:4]] == [20, 30, 60, 120], starts


def test_a_gang_of_which_another_gate_keeps_a_pod_reserves_nothing(gangs: Gangs) -> None:
    gangs.begin(member("a"), member("b"), member("c", others=True))

    assert gangs.steps() == [[]] * 4
    assert gangs.asked == []
    assert gangs.told[-1].endswith("3 of 3 members exist; another scheduling gate keeps c.")


def test_a_gangs_controller_gets_the_event_once(gangs: Gangs) -> None:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-1", "controller": True}
    pods = [member("a"), member("b"), member("c")]
    for each in pods:
        each["metadata"]["ownerReferences"] = [reference]
    gangs.fits = False
    gangs.begin(*pods)
    gangs.steps()

    regarding = {key: value for key, value in reference.items() if key != "controller"}
    waits = "Gang g starts whole: 3 of 3 members exist; 2 of 3 members fit; 1 cards missing."
    assert gangs.told_of.count(({**regarding, "namespace": "team-a"}, waits)) == 1


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0


def test_the_time_to_a_gangs_start_is_measured_once_by_its_size(gangs: Gangs) -> None:
    """From the first pod's creation, once enough have a node: two of three here."""
    before, seconds = starts(), value("bursar_gang_start_seconds_sum", pods="1-8")
    pods = [member(name, created_ms=T0 - MINUTE) for name in "abc"]
    for each in pods:
        each["metadata"]["annotations"]["bursar.dev/gang-minimum"] = "2"
    gangs.begin(*pods)
    gangs.steps(2)
    started = []
    for raw in gangs.pods():
        gangs.town.hear("pods", bound(raw))
        gangs.town.tick()
        started.append(starts() - before)

    assert started == [0, 1, 1]
    waited_s = (gangs.town.clock() - T0 + MINUTE) / SECOND
    assert value("bursar_gang_start_seconds_sum", pods="1-8") - seconds == pytest.approx(waited_s)


def test_the_start_of_a_gang_whose_label_says_more_pods_than_gangs_have_is_measured(gangs: Gangs) -> None:
    raw = held_pod("a", how="turn")
    raw["metadata"]["labels"] = {
        "pod-group.scheduling.sigs.k8s.io/name": "g",
        "pod-group.scheduling.sigs.k8s.io/min-available": "2000",
    }
    raw["metadata"]["annotations"]["bursar.dev/gang-minimum"] = "1"
    before = value("bursar_gang_start_seconds_count", pods="513-1024")
    gangs.begin(raw)
    gangs.steps(2)
    gangs.town.hear("pods", bound(gangs.pods()[0]))
    gangs.town.tick()

    assert value("bursar_gang_start_seconds_count", pods="513-1024") == before + 1


def starts() -> float:
    return value("bursar_gang_start_seconds_count", pods="1-8")


def test_a_gang_that_ran_before_this_process_did_is_not_measured(gangs: Gangs) -> None:
    before = starts()
    gangs.begin(*(bound(member(name)) for name in "abc"))
    gangs.steps(2)

    assert starts() == before


@pytest.mark.parametrize(("lucky", "reason"), [(0, "none-bound"), (1, "some-bound")])
def test_a_start_that_came_to_nothing_is_counted_once(gangs: Gangs, lucky: int, reason: str) -> None:
    others = {"none-bound", "some-bound"} - {reason}
    before = {each: value(FAILED, reason=each) for each in (reason, *others)}
    gangs.begin(*(member(name) for name in "abc"))
    gangs.steps(2)
    for raw in gangs.pods()[:lucky]:
        gangs.town.hear("pods", bound(raw))
    gangs.steps(1)
    assert value(FAILED, reason=reason) == before[reason]

    gangs.town.clock.turn(DEADLINE_MS)
    gangs.steps(6)

    assert value(FAILED, reason=reason) == before[reason] + 1
    assert all(value(FAILED, reason=each) == before[each] for each in others)


@pytest.mark.parametrize("minimum", [2, 3])
def test_a_gang_that_starts_in_time_has_not_failed(gangs: Gangs, minimum: int) -> None:
    before = [value(FAILED, reason=each) for each in ("none-bound", "some-bound")]
    pods = [member(name) for name in "abc"]
    for each in pods:
        each["metadata"]["annotations"]["bursar.dev/gang-minimum"] = str(minimum)
    gangs.begin(*pods)
    gangs.steps(2)
    for raw in gangs.pods()[:1]:
        gangs.town.hear("pods", bound(raw))
    gangs.steps(1)
    for raw in gangs.pods()[1:minimum]:
        gangs.town.hear("pods", bound(raw))
    gangs.town.clock.turn(DEADLINE_MS)
    gangs.steps(4)

    assert [value(FAILED, reason=each) for each in ("none-bound", "some-bound")] == before


def test_a_gang_whose_gates_stay_has_not_started(gangs: Gangs) -> None:
    before = [value(FAILED, reason=each) for each in ("none-bound", "some-bound")]
    gangs.begin(*(member(name) for name in "abc"))
    gangs.steps(1)
    gangs.refuses = Answered(500, {"message": "away"})
    gangs.steps(2)
    gangs.fits = False
    gangs.town.clock.turn(DEADLINE_MS)
    gangs.steps(4)

    assert [value(FAILED, reason=each) for each in ("none-bound", "some-bound")] == before


def bound(raw: Json) -> Json:
    """The pod on its node, without the gate."""
    after = copy.deepcopy(raw)
    after["spec"] |= {"nodeName": "n1", "schedulingGates": []}
    after["metadata"]["annotations"]["bursar.dev/devices"] = placement()
    return after


def of(*members: GangMember, size: int = 3, minimum: int = 0, was_whole: bool = False) -> WaitingGang:
    return WaitingGang("team-a", Gang("bursar", "g", size, minimum or size), members, was_whole=was_whole)


def at(name: str, *, bound: bool = False, gated: bool = True, until: int = 0, epoch: int = 1) -> GangMember:
    """A member with a reservation that lasts a minute until then."""
    has = (epoch, until - DEADLINE_MS, until) if until else (0, 0, 0)
    return GangMember(name, name, T0, bound, gated and not bound, *has)


SOON, LATER = T0 + 10 * SECOND, T0 + 50 * SECOND
_BC = at("b", until=SOON), at("c", until=SOON)


@pytest.mark.parametrize(
    ("gang", "expected"),
    [
        (of(at("a"), at("b")), WaitFor("2 of 3 members exist")),
        (of(at("a"), at("b"), at("c")), AskForCards(("a", "b", "c"), 3)),
        (of(at("a"), at("b"), minimum=2), AskForCards(("a", "b"), 2)),
        (of(at("a"), at("b"), at("c"), at("d")), AskForCards(("a", "b", "c"), 3)),
        (of(*(at(name, until=LATER) for name in "abc")), OpenGates(("a", "b", "c"))),
        # too little time is left for kube-scheduler
        (of(*(at(name, until=SOON) for name in "abc")), AskForCards(("a", "b", "c"), 3)),
        # the extender was killed between two of them
        (of(at("a", until=LATER), at("b", until=LATER), at("c")), AskForCards(("a", "b", "c"), 3)),
        # of two decisions
        (
            of(at("a", until=LATER, epoch=2), at("b", until=LATER), at("c", until=LATER)),
            AskForCards(("a", "b", "c"), 3),
        ),
        # begun: it goes on, however little time is left
        (
            of(at("a", until=SOON, gated=False), at("b", until=SOON), at("c", until=SOON)),
            OpenGates(("b", "c")),
        ),
        (
            of(at("a", until=SOON, bound=True), at("b", until=SOON), at("c", until=SOON)),
            OpenGates(("b", "c")),
        ),
        # one that ran whole gets a new member in
        (
            of(at("a", bound=True), at("b", bound=True), at("c"), was_whole=True),
            AskForCards(("c",), 1, ("a", "b")),
        ),
        # of which one has ended well
        (of(at("a", bound=True), at("c"), was_whole=True), AskForCards(("c",), 1, ("a",))),
    ],
)
def test_the_next_step_of_a_gang(gang: WaitingGang, expected: object) -> None:
    assert next_step(gang, T0) == expected


def test_a_gang_of_which_too_few_have_a_node_in_time_is_evicted_whole_and_not_asked_for_before() -> None:
    ended = T0 - 6 * SECOND
    part = of(
        at("a", bound=True, until=ended), at("b", bound=True, until=ended), at("c", gated=False, until=ended)
    )

    assert let_go(part, T0) == ("a", "b")
    assert isinstance(next_step(part, T0), WaitFor)
    assert let_go(part, ended + SECOND) == ()  # a late binding may not be seen yet
    enough = of(at("a", bound=True, until=ended), at("b", until=ended), size=2, minimum=1)
    assert let_go(enough, T0) == ()


def test_a_gang_that_ran_whole_is_not_evicted_when_it_loses_a_pod() -> None:
    ended = T0 - 6 * SECOND
    assert let_go(of(at("a", bound=True, until=ended), at("b"), size=2, was_whole=True), T0) == ()


def test_a_gang_is_one_of_the_held_and_is_counted_once_by_the_explanation(gangs: Gangs) -> None:
    """What it needs is what all of its pods need."""
    waiting = [member(name, how="budget", created_ms=T0 - HOUR) for name in "abc"]
    later = held_pod("p", how="budget", created_ms=T0 - MINUTE)
    gangs.begin(*waiting, later, team_a=HOLD.format(hours=0))
    gangs.steps(1)

    rows = gangs.town.get("/v1/held").get_json()["held"]
    assert [(each["pod"], each["gang"], each["pods"], each["ahead"], each["rateMilli"]) for each in rows] == [
        ("a", "g", 3, 0, 3_000),
        ("p", "", 1, 1, 1_000),
    ]
    first = gangs.town.get("/v1/held?limit=1").get_json()
    rest = gangs.town.get(f"/v1/held?limit=1&after={first['next']}").get_json()
    assert [each["pod"] for each in (*first["held"], *rest["held"])] == ["a", "p"]

    def needs(name: str) -> str:
        held = {"kind": "held", "reason": "OverBudget", "name": name, "generate_name": ""}
        post(gangs.town, posted(**held, uid=f"uid-{name}", namespace="team-a", figures={}))
        found: list[str] = gangs.town.get(f"/v1/explain/team-a/{name}").get_json()["waitsFor"]
        return next(each for each in found if each.startswith("needs"))

    assert needs("p").endswith("; 1 held gang of the namespace is ahead")
    assert needs("c").startswith("needs 0.5 GPU-hours of the budget, for 600 s at the rate 3")
