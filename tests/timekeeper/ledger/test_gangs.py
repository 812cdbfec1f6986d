"""How the budget pays gangs at the releaser: as one sum, in one step, and gone on with where another was
killed. Real database and settler, an API server of dicts."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_cluster_map import post as post_map
from tests.timekeeper.ledger.test_cluster_map import waits
from tests.timekeeper.ledger.test_decisions import post, posted
from tests.timekeeper.ledger.test_holding import HOLD, Holding, held_pod
from tests.timekeeper.worlds import (
    GPU,
    HOUR,
    MINUTE,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    placement,
)
from timekeeper.accounts.held.gangs import WaitingGang, gang_of_pods
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.core.decisions import DecisionRun
from timekeeper.core.gangs import Gang
from timekeeper.settler.releaser import MANY_UNTRIED, MAX_AT_ONCE
from timekeeper.store.decisions import SOURCE, record

ONE_DATABASE = "decisions about values; test_holding has the same releaser"

GATE = {"name": "bursar.dev/gang"}
STARTED = "2026-11-28T00:00:00Z"


def member(
    name: str, size: int = 3, gang: str = "g", how: str = "budget", former: bool = False, **fields: Any
) -> Json:
    """A pod of a gang behind both gates, with a whole card unless the fields say else. ``former``: as a
    release before the gang's gate made it."""
    raw = held_pod(name, how=how, **fields)
    raw["metadata"]["annotations"] |= {"bursar.dev/gang": gang, "bursar.dev/gang-size": str(size)}
    if not former:
        raw["metadata"]["annotations"]["bursar.dev/gang-key"] = f"bursar/{gang}"
        raw["spec"]["schedulingGates"].append(GATE)
    return raw


def paid(raw: Json) -> Json:
    """The pod without the budget's gate."""
    after = copy.deepcopy(raw)
    after["spec"]["schedulingGates"] = [gate for gate in raw["spec"]["schedulingGates"] if gate == GATE]
    return after


def bound(raw: Json, card: int = 0, mark: str = STARTED) -> Json:
    """The pod on its node, without gates."""
    after = copy.deepcopy(raw)
    after["spec"] |= {"nodeName": "n1", "schedulingGates": []}
    marks = {"bursar.dev/devices": placement(card=card)} | ({"bursar.dev/gang-started": mark} if mark else {})
    after["metadata"]["annotations"] |= marks
    return after


class Gangs(Holding):
    """A town, and who pays its gangs."""

    def hear(self, *raws: Json) -> None:
        """These pods changed."""
        for raw in raws:
            self.town.hear("pods", raw)

    def steps(self, count: int = 4) -> list[list[str]]:
        """What each of these steps released, half a second apart, with a tick before each."""
        found = []
        for _ in range(count):
            self.town.tick()
            found.append(self.step())
            self.town.clock.turn(500)
        return found


@pytest.fixture
def gangs(town: Town) -> Gangs:
    return Gangs(town)


@pytest.mark.parametrize("how", ["turn", "budget"])
def test_a_gang_is_paid_as_one_sum_in_one_step_once_as_many_exist_as_it_needs(gangs: Gangs, how: str) -> None:
    """Ten minutes of a card for each: 0.4 hours pay for two, and 0.5 for three."""
    gangs.begin(
        member("a", how=how, created_ms=T0 - HOUR), member("b", how=how), team_a=HOLD.format(hours=0.4)
    )
    assert gangs.steps() == [[]] * 4  # it could pay both
    gangs.town.hear("pods", member("c", how=how))
    assert gangs.steps() == [[]] * 4

    gangs.town.change("configmaps", budgets(team_a=HOLD.format(hours=0.5)))

    assert gangs.steps() == [["a", "b", "c"], [], [], []]
    gangs.town.tick()
    account = gangs.town.get("/v1/balances/team-a").get_json()
    assert account["reserved"] == (3 * GPU * 10 * MINUTE if how == "budget" else 0)
    assert all(GATE in raw["spec"]["schedulingGates"] for raw in gangs.pods())


def test_of_two_gangs_that_appear_pod_by_pod_on_an_account_for_less_than_both_one_is_paid(
    gangs: Gangs,
) -> None:
    """Ten minutes of a card for each: 17 hours pay for 102 of 128."""
    gangs.begin(team_a=HOLD.format(hours=17))
    released: list[str] = []
    for at in range(64):
        gangs.town.hear("pods", member(f"g{at:02}", 64, "g"))
        gangs.town.hear("pods", member(f"h{at:02}", 64, "h"))
        if at % 8 == 7:
            released += [name for step in gangs.steps(2) for name in step]

    assert released == [f"g{at:02}" for at in range(64)]
    assert gangs.steps() == [[]] * 4


def test_a_gang_of_which_a_member_is_paid_is_paid_out_without_asking_and_no_further(gangs: Gangs) -> None:
    """A releaser was killed between two gates, and the account is spent since. Three of four are needed."""
    pods = [member(name, 4, created_ms=T0 - HOUR) for name in "abcd"]
    for raw in pods:
        raw["metadata"]["annotations"]["bursar.dev/gang-minimum"] = "3"
    gangs.begin(paid(pods[0]), *pods[1:], held_pod("other"), team_a=HOLD.format(hours=0))

    assert gangs.steps() == [["b", "c"], [], [], []]
    gangs.restart()
    gangs.town.change("configmaps", budgets(team_a=HOLD.format(hours=0.75)))

    assert gangs.steps() == [["d"], [], [], []]


def test_of_the_former_form_one_gang_is_open_at_a_time(gangs: Gangs) -> None:
    """No gate of cards keeps its pods from kube-scheduler, which would try all of them again and again. The
    first of all can never be paid. The watch is late for a while."""
    former = {
        f"{name}{at}": member(f"{name}{at}", size, name, former=True, created_ms=T0 - age * MINUTE)
        for name, size, age in (("f", 6, 3), ("g", 2, 2), ("h", 2, 1))
        for at in range(size)
    }
    now = [member(f"n{at}", 2, "n", namespace="team-b") for at in "01"]
    gangs.begin(*former.values(), *now, team_a=HOLD.format(hours=0.8))
    gangs.hears = False
    gangs.steps()
    assert sorted(gangs.calls) == ["g0", "g1", "n0", "n1"]
    for raw in gangs.pods():
        gangs.town.hear("pods", raw)
    gangs.hears = True
    assert gangs.steps() == [[]] * 4

    for card, name in enumerate(("g0", "g1")):
        gangs.town.hear("pods", bound(former[name], card, mark=""))

    assert ["h0", "h1"] in gangs.steps()


def test_a_paid_gang_counts_as_waiting_for_one_lookahead(gangs: Gangs) -> None:
    """It may wait for cards for days, and a single pod of its namespace need not."""
    pods = [member(name, 2, created_ms=T0 - HOUR) for name in "ab"]
    gangs.begin(*pods, team_a=HOLD.format(hours=0.4))
    assert gangs.steps(2) == [["a", "b"], []]
    gangs.town.hear("pods", held_pod("single"))
    gangs.town.advance(9 * MINUTE)
    assert gangs.steps(1) == [[]]

    gangs.town.advance(MINUTE)

    assert gangs.steps(1) == [["single"]]


def holding(raw: Json, free_ms: int | None = None, status: str = "True", at_ms: int = T0) -> Json:
    """The paid member with cards that are reserved for half an hour, while others leave; or were."""
    card = {"a": 0, "b": 1}[raw["metadata"]["name"]]
    said = json.loads(placement(card=card)) | {"node": "n1", "until": iso(T0 + 30 * MINUTE)}
    said |= {"victims": {"uid-v": "team-b/Job/v"}} | ({} if free_ms is None else {"free": iso(free_ms)})
    after = paid(raw)
    after["status"].setdefault("conditions", []).append(
        {
            "type": "bursar.dev/CardsHeld",
            "status": status,
            "reason": "Reclaim" if status == "True" else "TimeUp",
            "message": json.dumps(said if status == "True" else {"why": "late", "tries": 1}),
            "lastTransitionTime": iso(at_ms),
        }
    )
    return after


def test_while_others_leave_for_a_paid_gang_its_budget_stays_reserved_until_the_cards_are_given_back(
    gangs: Gangs,
) -> None:
    """Longer than one lookahead."""
    pods = [member(name, 2, created_ms=T0 - HOUR) for name in "ab"]
    gangs.begin(*pods, team_a=HOLD.format(hours=0.4))
    assert gangs.steps(2) == [["a", "b"], []]
    gangs.hear(held_pod("single"), *map(holding, pods))
    gangs.town.advance(20 * MINUTE)
    assert gangs.steps(1) == [[]]

    gangs.hear(*(holding(raw, status="False", at_ms=T0 + 20 * MINUTE) for raw in pods))

    assert ["single"] in gangs.steps(2)


def test_a_gang_for_which_others_leave_is_charged_from_when_the_last_card_is_free(gangs: Gangs) -> None:
    pods = [member(name, 2, created_ms=T0 - HOUR) for name in "ab"]
    gangs.begin(*pods, team_a=HOLD.format(hours=9))
    gangs.steps(2)
    free_ms = T0 + 2 * MINUTE
    gangs.hear(*map(holding, pods))
    gangs.town.advance(2 * MINUTE)
    assert gangs.town.charged() == 0

    gangs.hear(*(holding(raw, free_ms) for raw in pods))
    gangs.town.advance(MINUTE)

    assert gangs.town.charged() == 2 * GPU * (gangs.town.clock() - free_ms)


@pytest.mark.parametrize(("waits", "is_recorded", "reserves"), [(4, True, 5), (20, True, 0), (20, False, 9)])
def test_a_restart_of_the_timekeeper_makes_no_paid_gang_count_anew(
    gangs: Gangs, waits: int, is_recorded: bool, reserves: int
) -> None:
    """It counts for ten minutes from its payment. Without a record of that, from the restart."""
    gangs.begin(*(member(name, 2, created_ms=T0 - HOUR) for name in "ab"), team_a=HOLD.format(hours=9))
    assert gangs.steps(1) == [["a", "b"]]
    with gangs.town.store.writing() as connection:
        record(
            connection, SOURCE, [DecisionRun(each, 1, each.at_ms) for each in gangs.decisions if is_recorded]
        )
    gangs.town.advance(waits * MINUTE)

    gangs.restart()
    gangs.town.advance(MINUTE)

    budget = gangs.town.get("/v1/balances/team-a").get_json()
    assert budget["reserved"] // (2 * GPU * MINUTE) == 10 * (reserves > 0)
    gangs.town.advance(reserves * MINUTE)
    assert gangs.town.get("/v1/balances/team-a").get_json()["reserved"] == 0


def test_no_limit_of_single_releases_splits_a_gang(gangs: Gangs) -> None:
    """Neither how many are released at once, nor how many pods kube-scheduler has to try."""
    count = MAX_AT_ONCE + 5
    others = [gpu_pod(f"u{at}", node="", percent=1) for at in range(MANY_UNTRIED + 1)]
    pods = [member(f"m{at:02}", count, percent=1) for at in range(count)]
    gangs.begin(*others, *pods, held_pod("single", how="turn", percent=1))

    found = gangs.steps()

    assert [len(each) for each in found] == [count, 0, 0, 0]  # and none is released singly meanwhile


def test_a_gang_that_no_grant_can_pay_keeps_no_single_pod_waiting(gangs: Gangs) -> None:
    pods = [member(name, created_ms=T0 - HOUR) for name in "abc"]
    gangs.begin(*pods, held_pod("single", created_ms=T0), team_a=HOLD.format(hours=0.4))

    assert ["single"] in gangs.steps()


def test_no_single_pod_takes_what_a_gang_is_paid_with(gangs: Gangs) -> None:
    """It pays for three: a gang of two, and one more. The watch is late."""
    pods = [member(name, 2, created_ms=T0 - HOUR) for name in "ab"]
    gangs.begin(*pods, held_pod("c"), held_pod("d"), team_a=HOLD.format(hours=0.6))
    gangs.hears = False

    gangs.steps()

    assert sorted(gangs.calls) == ["a", "b", "c"]


def of(*members: LedgerPod, minimum: int = 3, ended: int = 0, is_one: bool = True) -> WaitingGang:
    return WaitingGang("team-a", Gang("bursar/g", 3, minimum), members, ended_well=ended, is_one=is_one)


def read(raw: Json) -> LedgerPod:
    pod = read_pod(raw)
    assert isinstance(pod, LedgerPod)
    return pod


def at(name: str, how: str = "gated", says: int | None = None) -> LedgerPod:
    node = "n1" if how in ("bound", "marked") else ""
    is_marked, is_kept = "marked" in how, "kept" in how
    pod = replace(read(member(name)), uid=name, node=node, is_gated="gated" in how, has_other_gate=is_kept)
    return replace(pod, membership=replace(pod.membership, needs_said=says, is_marked=is_marked))


A, B, C, D = (at(uid) for uid in "abcd")


@pytest.mark.parametrize(
    ("gang", "payment", "paid_out"),
    [
        (of(A, B), "wait", ()),
        (of(A, B, minimum=2), "together", ()),
        (of(A, B, ended=1), "together", ()),
        (of(A, at("b", says=2)), "together", ()),
        (of(at("a", says=3), at("b", says=2)), "wait", ()),  # the oldest that says it counts
        (of(at("a", "paid", says=2), B), "together", ("b",)),
        (of(A, B, C, D), "together", ()),
        (of(A, B, at("c", "kept gated")), "wait", ()),
        (of(A, B, C, is_one=False), "wait", ()),
        (of(at("a", "paid"), B, C, D), "together", ("b", "c")),
        (of(at("a", "paid"), B), "wait", ()),  # one is gone; a partial gang gets no more money
        (of(at("a", "paid"), at("b", "paid"), at("c", "paid"), D), "singly", ()),
        (of(at("a", "bound"), B, C), "together", ("b", "c")),
        (of(at("a", "marked"), B), "singly", ()),
        (of(at("a", "marked"), B, is_one=False), "singly", ()),  # an owner that was resized
        (of(A, ended=3), "singly", ()),  # nothing has to start together any more
    ],
)
def test_how_a_gang_is_paid(gang: WaitingGang, payment: str, paid_out: tuple[str, ...]) -> None:
    assert (gang.payment, gang.paid_out) == (payment, paid_out)


@pytest.mark.parametrize("name", ["", "size", "minimum", "topology", "topology-preferred"])
def test_members_that_contradict_each_other_or_that_another_gate_keeps_are_not_paid(name: str) -> None:
    kept, others = member("a", 2, others=not name), [member(other, 2) for other in "bc"]
    if name:
        kept["metadata"]["annotations"][f"bursar.dev/gang-{name}"] = "rack" if "topology" in name else "1"

    it = gang_of_pods("team-a", [read(raw) for raw in (kept, *others)], [])

    assert it is not None
    assert it.payment == "wait"


@pytest.mark.parametrize(
    ("kind", "owner", "needed"),
    [("PyTorchJob", "", 3), ("PyTorchJob", "j", 2), ("PyTorchJob", "another", 3), ("Job", "j", 3)],
)
def test_one_that_ended_well_lowers_the_number_that_starts_if_its_owner_makes_no_other(
    kind: str, owner: str, needed: int
) -> None:
    """A bare pod's name may be used again, pods of several owners may be of a gang of this name, and a Job of
    more completions makes another."""
    waits, ended = member("a"), member("b")
    ended["status"]["phase"] = "Succeeded"
    for raw, name in ((waits, "j"), (ended, owner)):
        by = {"apiVersion": "batch/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
        raw["metadata"]["ownerReferences"] = [by] if name else []

    it = gang_of_pods("team-a", [read(waits), read(ended)], [])

    assert it is not None
    assert it.needed == needed


def test_a_gang_is_one_of_the_held_and_is_counted_once_by_the_explanation(gangs: Gangs) -> None:
    """What it needs is what all of its pods need."""
    waiting = [member(name, created_ms=T0 - HOUR) for name in "abc"]
    later = held_pod("p", created_ms=T0 - MINUTE)
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
        (said,) = found  # once for the gang
        return said

    left = "team-a has 0 GPU-hours of its budget left until 2026-12-01T00:00:00Z"
    assert needs("p") == (
        f"needs 0.1667 GPU-hours at once, for 600 s at the rate 1; {left}: 0.1667 are missing; 1 held gang of"
        " the namespace is ahead"
    )
    assert needs("c") == (
        f"gang g needs 0.5 GPU-hours at once, for 600 s at the rate 3; {left}: 0.5 are missing; never by the"
        " present budget: it needs 0.5 of 0 granted a period; 0 held pods of the namespace are ahead"
    )


def test_what_a_gang_waits_for_is_said_first_and_no_two_amounts_look_the_same(gangs: Gangs) -> None:
    """Less than a ten-thousandth of what it needs is missing, in Events as in the explanation."""
    waiting = [member(name, created_ms=T0) for name in "abc"]
    gangs.begin(*waiting, team_a=HOLD.format(hours="0.4999999"))
    gangs.steps(1)

    def explained(**figures: Any) -> list[str]:
        message = {"message": f"Gang g starts whole: {figures.pop('exist')}."}
        post(
            gangs.town,
            posted(kind="gang", reason="GangWaits", name="a", generate_name="", uid="uid-a", figures=message),
        )
        found: list[str] = gangs.town.get("/v1/explain/team-a/a").get_json()["waitsFor"]
        return found

    needs = (
        "0.5 GPU-hours at once{}, for 600 s at the rate 3; team-a has 0.4999999 GPU-hours of its budget left"
        " until 2026-12-01T00:00:00Z: 0.0000001 are missing; never by the present budget: it needs 0.5 of"
        " 0.4999999 granted a period"
    )
    unpaid = "Gang g starts whole: 3 of 3 members exist; 3 wait for their budget or their turn."
    rows = [waits("a") | {"reason": unpaid}, waits("b") | {"reason": ""}, waits("x") | {"reason": "other"}]
    assert post_map(gangs.town, waiting={"total": 3, "pods": rows, "more": {}}) == 200
    found = gangs.town.get("/v1/waiting?namespace=team-a").get_json()["pods"]
    assert [row["reason"] for row in found] == [
        f"Gang g starts whole: 3 of 3 members exist; needs {needs.format('')}.",
        f"needs {needs.format('')}",
        "other",
    ]
    of_gang = f"gang g needs {needs.format('')}; 0 held pods of the namespace are ahead"
    assert explained(exist="2 of 3 members exist") == ["Gang g starts whole: 2 of 3 members exist", of_gang]
    assert explained(exist="3 of 3 members exist; 3 wait for their budget or their turn") == [of_gang]
    said = {each.pod.name: each.message for each in gangs.town.pod_notices if each.reason == "HeldByBudget"}
    assert said == dict.fromkeys(
        "abc",
        "The scheduling gate bursar.dev/budget holds this pod until the GPU budget of namespace team-a can"
        f" pay all of its gang g: {needs.format(' (0.1666667 of them for this pod)')}. Held pods of the"
        " namespace that go before it: 0. Released at the earliest: not by the present budget.",
    )
