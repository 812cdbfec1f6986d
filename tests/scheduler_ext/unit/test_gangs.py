"""Gangs through the extender's verbs and its read-only port's call: cards for all members, or for none."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.gangs.reserve import GangReservations, Written
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import Pod, read_any
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.reports.waiting_pods import WaitingPods
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.verbs.last_decisions import LastDecisions
from tests.scheduler_ext.reserving import held
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import asking, node, on, percent, read
from tests.worlds import Json, card, container
from timekeeper.core.ledger.reservation import Reservation
from timekeeper.runtime.clock import now_ms
from timekeeper.runtime.http.problem_details import Problem

UNTIL = 60_000


def member(name: str, share: int = 100, size: int = 2, *, gated: bool = True, rack: str = "") -> Json:
    """A held pod of a gang; ``rack``: the label of nodes whose value all members need alike."""
    named = {"bursar.dev/gang": "g", "bursar.dev/gang-size": str(size), "bursar.dev/held": "turn"}
    named |= {"bursar.dev/gang-topology": rack} if rack else {}
    raw = percent(share, name, annotations=named)
    if gated:
        raw["spec"]["schedulingGates"] = [{"name": "bursar.dev/budget"}]
    return raw


class Extender:
    """A cache, and what is written. ``refuses``: names of pods whose reservation the API server refuses;
    ``before_write``: called before each."""

    def __init__(self, *raws: Json, cards: int = 2, nodes: list[Json] | None = None) -> None:
        self.now_ms = 1_000
        self.cache = ClusterCache(lambda: self.now_ms, lambda _: None)
        nodes = nodes or [node("n", *(card(at) for at in range(cards)))]
        self.cache.nodes_listed(map(read_node, nodes))
        self.cache.pods_listed([read_any(raw) for raw in raws])
        self.refuses: set[str] = set()
        self.written: dict[str, Reservation] = {}
        self.withdrawn: list[str] = []
        self.leads = True
        self.before_plan: Callable[[], object] = lambda: None
        self.reserve = GangReservations(
            self.cache,
            self._given,
            self._write,
            lambda pod: self.withdrawn.append(pod.name),
            lambda: self.leads,
            lambda: self.now_ms,
            lambda *_, **__: None,
        )

    def _given(self, snapshot: Any) -> PlanInput:
        self.before_plan()
        return PlanInput(snapshot, UNHEARD, lambda _: BINPACK)

    def _write(self, pod: Pod, reservation: Reservation) -> Written:
        if pod.name in self.refuses:
            return "refused"
        self.written[pod.name] = reservation
        return "written"

    def ask(self, *names: str, **fields: Any) -> Json:
        """The answer for these pods."""
        uids = [f"uid-{each}" for each in names]
        body = {"version": 1, "pods": uids, "needed": len(uids), "epoch": 7, "until": UNTIL, **fields}
        found: Json = json.loads(self.reserve(json.dumps(body).encode()))
        return found

    def free(self) -> list[int]:
        return [each.share_milli for each in self.cache.snapshot.node("n").free_by_card if each]


def test_all_members_get_cards_with_the_epoch_or_none_does() -> None:
    extender = Extender(member("a"), member("b"), member("c"))

    assert extender.ask("a", "b", "c") == {
        "version": 1,
        "reserved": 0,
        "missing": 1,
        "cards": 1,
        "near": "",
        "why": "no node has room for more of them",
    }
    assert (extender.free(), extender.written) == ([1000, 1000], {})

    assert extender.ask("a", "b")["reserved"] == 2
    assert extender.free() == [0, 0]
    assert {(each.kind, each.epoch, each.node) for each in extender.written.values()} == {("gang", 7, "n")}
    assert {each.free_ms for each in extender.written.values()} == {1_000}  # they are charged from now on


def test_the_map_says_of_a_waiting_pod_what_its_gang_lacked_last() -> None:
    extender = Extender(member("a"), member("b"), member("c"))
    waiting = WaitingPods(
        lambda: extender.cache.snapshot, LastDecisions(), lambda: UNHEARD, extender.reserve.lack, lambda: 0
    )

    def reasons() -> set[str]:
        return {pod["reason"] for pod in waiting()["pods"]}

    before = reasons()
    extender.ask("a", "b", "c")
    lack = "gang g starts whole: 2 of 3 members fit; 1 cards missing; no node has room for more of them"
    assert reasons() == {lack} != before

    extender.ask("a", "b", "c", needed=2)
    assert lack not in reasons()


def racked(name: str, rack: str, cards: int) -> Json:
    raw = node(name, *(card(at) for at in range(cards)))
    raw["metadata"]["labels"] = {"example.com/rack": rack}
    return raw


def test_a_gang_that_fits_in_no_rack_is_told_of_the_best_one() -> None:
    raws = [member(each, rack="example.com/rack") for each in "abc"]
    extender = Extender(*raws, nodes=[racked("x", "r1", 1), racked("y", "r2", 2)])

    answer = extender.ask("a", "b", "c")
    assert (answer["reserved"], answer["missing"], answer["near"]) == (0, 1, "rack r2")
    lack = "2 of 3 members fit in rack r2; 1 cards missing; no rack has room for more of them"
    assert extender.reserve.lack(read(raws[0])) == f"gang g starts whole: {lack}"
    assert extender.ask("a", "b")["where"] == "on 1 node in rack r2"


def test_no_card_is_reserved_while_a_launcher_has_no_room_for_its_cpu() -> None:
    launcher = asking(container(requests={"cpu": "8"}), name="l", annotations={"bursar.dev/gang": "g"})
    small, roomy = node("n", card(0), card(1)), node("n", card(0), card(1))
    roomy["status"]["allocatable"] = roomy["status"]["allocatable"] | {"cpu": "8"}
    extender = Extender(member("a"), member("b"), launcher, nodes=[small])

    answer = extender.ask("a", "b")
    assert (answer["reserved"], answer["missing"], answer["cards"]) == (0, 0, 0)
    assert answer["why"] == (
        "no node has the CPU and memory of l, of this gang, beside the members with cards"
    )
    assert extender.written == {}
    extender.cache.node_updated(read_node(roomy))
    assert extender.ask("a", "b")["reserved"] == 2


def test_a_member_that_comes_later_goes_where_the_others_run() -> None:
    there = on(member("a", rack="example.com/rack"), "x", "x-GPU-0")
    late = member("b", rack="example.com/rack")
    nodes = [racked("x", "r1", 3), racked("y", "r2", 1)]  # by itself it would fill the second rack
    alone, beside = Extender(there, late, nodes=nodes), Extender(there, late, nodes=nodes)

    alone.ask("b")
    beside.ask("b", bound=["uid-a", "uid-unknown"])

    assert (alone.written["b"].node, beside.written["b"].node) == ("y", "x")


def test_as_many_as_fit_are_reserved_where_fewer_suffice() -> None:
    extender = Extender(member("a"), member("b"), member("c"))

    assert extender.ask("a", "b", "c", needed=2)["reserved"] == 2


def test_where_one_pod_has_changed_the_cards_of_all_are_free_again() -> None:
    extender = Extender(member("a"), member("b"))
    extender.refuses = {"b"}

    assert extender.ask("a", "b")["reserved"] == 0
    assert extender.free() == [1000, 1000]
    assert extender.withdrawn == ["a"]


def test_a_card_that_is_taken_while_the_plan_is_made_is_not_reserved_as_well() -> None:
    """A bind takes it; the next plan knows of it."""
    extender = Extender(member("a"), member("b"))
    other = read(on(percent(100, "other"), "n", "GPU-0"))
    extender.before_plan = lambda: extender.cache.pod_updated(other)

    assert extender.ask("a", "b")["missing"] == 1
    assert extender.written == {}


def test_cards_that_were_reserved_for_the_gang_before_count_as_free_for_it() -> None:
    extender = Extender(member("a"), member("b"))
    extender.ask("a", "b")

    assert extender.ask("a", "b", epoch=8)["reserved"] == 2
    assert {each.epoch for each in extender.written.values()} == {8}


def test_a_member_that_is_gone_or_unknown_leaves_all_without_cards() -> None:
    extender = Extender(member("a"))

    assert extender.ask("a", "b")["why"] == "not all of its pods are known to wait"
    assert extender.free() == [1000, 1000]


def test_a_replica_that_does_not_lead_reserves_nothing() -> None:
    extender = Extender(member("a"), member("b"))
    extender.leads = False

    with pytest.raises(Problem, match="another replica leads"):
        extender.ask("a", "b")


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"pods": []}, "pods"),
        ({"pods": ["u", "u"]}, "pods"),
        ({"pods": [1]}, "pods"),
        ({"pods": "u"}, "pods"),
        ({"bound": "u"}, "bound"),
        ({"bound": ["u", "u"]}, "bound"),
        ({"needed": 0}, "needed"),
        ({"needed": 3}, "needed"),
        ({"epoch": "7"}, "epoch"),
        ({"until": True}, "until"),
        ({"until": 1_000}, "until"),
        ({"until": 1_000 + 3_600_001}, "until"),
        ({"version": 2}, "version"),
    ],
)
def test_a_bad_body_is_named_by_its_field(fields: Json, where: str) -> None:
    with pytest.raises(Problem) as raised:
        Extender(member("a"), member("b")).ask("a", "b", **fields)

    assert (raised.value.status, raised.value.where) == (400, where)


@pytest.fixture
def waits(running: Stepped) -> Stepped:
    """A node with two cards, and one with four."""
    running.put_node(node("n", card(0), card(1)))
    running.put_node(node("m", *(card(at) for at in range(4))))
    return running


def test_a_member_is_offered_its_reserved_node_alone_and_none_before(waits: Stepped) -> None:
    mine = waits.put_pod(member("a", 60, gated=False))
    assert waits.filter(mine, "n", "m")["NodeNames"] == []
    assert waits.bind(mine, "n") == "no cards are reserved for all of the pod's gang yet"

    mine = held(member("a", 60, gated=False), "n", "GPU-0", since_ms=now_ms(), until_ms=now_ms() + UNTIL)
    mine = waits.put_pod(as_gang(mine))

    assert waits.filter(mine, "n", "m")["NodeNames"] == ["n"]
    assert waits.bind(mine, "m") == "no cards are reserved for all of the pod's gang yet"
    assert waits.bind(mine, "n") == ""


def test_cards_are_kept_for_a_member_behind_its_gate(waits: Stepped) -> None:
    waits.put_pod(as_gang(held(member("a"), "n", "GPU-0", since_ms=now_ms(), until_ms=now_ms() + UNTIL)))

    assert sorted(waits.free("n")) == [0, 1000]


def test_kube_scheduler_gets_no_victims_for_one_member(waits: Stepped) -> None:
    waits.put_pod(on(percent(100, "low", priority=-5), "n", "GPU-0"))
    mine = waits.put_pod(member("a", gated=False) | {})
    asked = {"NodeNameToVictims": None, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "uid-low"}]}}}

    answer = waits.client.post("/preempt", json={"Pod": mine, **asked}).get_json()

    assert not answer["NodeNameToMetaVictims"]


def test_a_member_takes_no_part_of_a_card_that_is_reserved_for_another(waits: Stepped) -> None:
    """Two halves of one card: the first one that is bound leaves the other's."""
    times: dict[str, Any] = {"since_ms": now_ms(), "until_ms": now_ms() + UNTIL}
    raws = [held(member(name, 50, gated=False), "n", "GPU-0", **times) for name in ("a", "b")]
    halves = [waits.put_pod(as_gang(each)) for each in raws]
    waits.put_pod(on(percent(100, "other"), "n", "GPU-1"))

    node_now = waits.extender.cache.snapshot.node("n")
    assert sorted(as_found_by("uid-a", node_now).allocations) == ["uid-b", "uid-other"]
    assert [waits.bind(each, "n") for each in halves] == ["", ""]
    assert waits.free("n") == [0, 0]


def as_gang(raw: Json) -> Json:
    """The reservation as one of a gang's."""
    (condition,) = [each for each in raw["status"]["conditions"] if each["type"] == "bursar.dev/CardsHeld"]
    condition["reason"] = "Gang"
    condition["message"] = json.dumps(json.loads(condition["message"]) | {"epoch": 7})
    return raw
