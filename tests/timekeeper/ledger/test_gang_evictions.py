"""The pods of a gang leave together, or none does: budgets and pods in a real settler, an API server whose
answers are told, and a clock turned by hand."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.timekeeper.clocks import iso
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.leaving import PDB_429
from tests.timekeeper.ledger.test_budget_evictions import DELETE_AFTER, ONE_HOUR, pod
from tests.timekeeper.ledger.test_claim_evictions import ClaimSpending, claim, user
from tests.timekeeper.ledger.test_gangs import member as held_member
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town
from timekeeper.runtime.api_server import Answered, Api
from timekeeper.settler.evictions import reasons
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.rounds import GangRound, IdleRound, OvertimeRound, remove_finalizers
from timekeeper.store import fencing

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"

Make = Callable[..., Json]


def member(
    name: str, card: int = 0, size: int = 3, minimum: int = 0, make: Make = pod, **fields: Any
) -> Json:
    """A pod of gang ``g`` that has a card, on a node since T0 unless the fields say else."""
    marks = {"bursar.dev/held": "budget", "bursar.dev/gang": "g", "bursar.dev/gang-size": str(size)}
    least = {"bursar.dev/gang-minimum": str(minimum)} if minimum else {}
    fields["annotations"] = marks | least | fields.get("annotations", {})
    return make(name, **({"card": card} if make is pod else {}), **fields)


@pytest.fixture
def spending(town: Town, tmp_path: Path) -> Iterator[ClaimSpending]:
    api = FakeApiServer()
    with serving(api) as url:
        yield ClaimSpending(town, api, url, tmp_path)


def test_a_gang_leaves_at_once_in_the_turn_of_the_last_of_its_pods(spending: ClaimSpending) -> None:
    """A pod with less priority than one of them goes before; each takes the time of one eviction."""
    spending.start(
        *(member("a", 0, priority=9), member("b", 1, priority=-9), member("c", 2)),
        *(pod("s", 3, priority=1), pod("t", 4, priority=10)),
        team_a=ONE_HOUR,
    )
    spending.later(12 * MINUTE, 5 * MINUTE - 10 * SECOND)

    left = [spending.turn(10 * SECOND) for _ in range(7)]

    assert left == [["s"], ["a", "b", "c"], [], [], ["t"], [], []]
    said = [each["note"] for each in spending.api.events if each["reason"] == reasons.SPENT]
    assert [each.endswith("All 3 pods of gang g leave together.") for each in said] == [
        False,
        *[True] * 3,
        False,
    ]


def test_where_a_disruption_budget_keeps_one_of_a_gang_none_leaves_until_its_grace_is_over(
    spending: ClaimSpending,
) -> None:
    spending.start(member("a", 0), member("b", 1), member("c", 2), team_a=ONE_HOUR)
    spending.api.refusals["b"] = (429, PDB_429)
    spending.later(20 * MINUTE, 5 * MINUTE)

    assert spending.later(5 * MINUTE, 5 * MINUTE - 10 * SECOND) == []
    assert spending.api.evictions == []
    assert [spending.notice(name, DELETE_AFTER) is None for name in "abc"] == [True, False, True]
    (said,) = [each["note"] for each in spending.api.events if each["reason"] == reasons.SPENT_PROTECTED]
    assert "this pod and keeps gang g whole; they are deleted after" in said
    assert spending.turn(10 * SECOND) == ["a", "b", "c"]
    assert {each["preconditions"]["uid"] for each in spending.api.deletions} == {"uid-a", "uid-b", "uid-c"}


def test_an_elastic_gang_loses_single_pods_down_to_its_minimum_and_then_leaves_whole(
    spending: ClaimSpending,
) -> None:
    pods = [member(name, card, 4, 2, priority=card) for card, name in enumerate("abcd")]
    spending.start(*pods, team_a=ONE_HOUR)
    spending.later(15 * MINUTE, 5 * MINUTE - 10 * SECOND)

    assert [spending.turn(10 * SECOND) for _ in range(4)] == [["a"], ["b"], ["c", "d"], []]


def test_an_elastic_gang_does_not_lose_a_pod_below_its_minimum_while_the_watch_is_late(
    spending: ClaimSpending,
) -> None:
    """``a`` was asked to leave, and is shown as before."""
    spending.start(
        *(member(name, card, 3, 2, priority=card) for card, name in enumerate("abc")), team_a=ONE_HOUR
    )
    spending.later(20 * MINUTE, 5 * MINUTE - 10 * SECOND)
    spending.town.advance(10 * SECOND)

    for _ in range(5):
        spending.evictor.step()
        spending.town.advance(10 * SECOND)

    assert spending.asked() == ["a"]


@pytest.mark.parametrize(("minimum", "leaving"), [(3, []), (2, ["b"])])
def test_a_protected_pod_keeps_those_without_which_its_gang_does_not_go_on(
    spending: ClaimSpending, minimum: int, leaving: list[str]
) -> None:
    protecting = ONE_HOUR + "\nprotect: {labels: {keep: me}, cards: 1}"
    first = member("a", 0, 3, minimum, labels={"keep": "me"})
    spending.start(
        first, member("b", 1, 3, minimum), member("c", 2, 3, minimum, priority=1), team_a=protecting
    )

    assert spending.later(20 * MINUTE, 5 * MINUTE, *[30 * MINUTE] * 3) == leaving


def test_who_shares_a_claim_with_one_of_a_gang_leaves_with_the_gang(spending: ClaimSpending) -> None:
    """``r`` is of no gang; ``s`` has a claim of its own."""
    spending.start(
        claim("c", "p", "r"),
        claim("d", "q", devices=("gpu-1",)),
        claim("e", "s", devices=("gpu-2",)),
        *(member("p", size=2, make=user), member("q", size=2, make=user), user("r", priority=9), user("s")),
        team_a=ONE_HOUR,
    )

    assert spending.later(20 * MINUTE, 5 * MINUTE, 10 * SECOND) == ["p", "q", "r", "s"]
    assert spending.asked()[:1] == ["s"]


def test_a_member_that_waits_keeps_no_gang(spending: ClaimSpending) -> None:
    """A replacement that is behind the gate holds nothing."""
    waits = held_member("c", created_ms=T0)
    spending.start(member("a", 0), member("b", 1), waits, team_a=ONE_HOUR)

    assert spending.later(30 * MINUTE, 5 * MINUTE) == ["a", "b"]


OVERTIME = "gpuHours: 100\nreserve: declared\nrequireDuration: true\novertime: evict"


def test_a_gang_past_its_declared_time_leaves_once_the_last_of_its_pods_is(spending: ClaimSpending) -> None:
    """A minute later than the others; also of an elastic one."""
    times = {"a": 600, "b": 660}
    pods = [
        member(name, card, 2, 1, annotations={"bursar.dev/declared": str(times[name])})
        for card, name in enumerate(times)
    ]
    spending.start(*pods, team_a=OVERTIME)
    evictor = OvertimeRound(spending.context())

    spending.town.advance(11 * MINUTE + 29 * SECOND)
    evictor.step()
    assert (spending.asked(), {each.reason for each in spending.decisions}) == ([], {"OvertimeWarning"})
    spending.api.refusals["b"] = (429, PDB_429)
    spending.town.advance(SECOND)
    evictor.step()
    assert spending.asked() == []

    spending.api.refusals.clear()
    spending.town.advance(10 * MINUTE)
    evictor.step()

    assert spending.asked() == ["a", "b"]


class IdleGang:
    """Two members, whose node's agent reports the use of each."""

    def __init__(self, spending: ClaimSpending) -> None:
        self.spending = spending
        settings = "idle: evict\nidleAfter: 10m\nidleGrace: 5m\nidleBelow: 0.05"
        pods = [member(name, card, 2, 1) for card, name in enumerate("ab")]
        spending.start(*pods, team_a="gpuHours: 100", _settings=settings)
        self.evictor = IdleRound(spending.context())

    def turn(self, minutes: int, **utilisation: int) -> list[str]:
        """Minutes with this use of each pod's card; the pods that were asked to leave."""
        spending, town = self.spending, self.spending.town
        for _ in range(minutes):
            town.clock.turn(MINUTE)
            spending.report(
                [
                    {
                        "uid": f"uid-{name}",
                        "cards": [{"uuid": f"GPU-{card}", "utilisation": use, "memory_mib": 9}],
                    }
                    for card, (name, use) in enumerate(utilisation.items())
                ]
            )
            town.tick()
            patched = len(spending.api.patches)
            self.evictor.step()
            spending.apply(spending.api.patches[patched:])
            town.tick()
        return spending.asked()


def test_an_idle_gang_leaves_whole_and_one_busy_pod_keeps_it(spending: ClaimSpending) -> None:
    """It is idle since the last of its pods is; it leaves whole, whatever its minimum."""
    gang = IdleGang(spending)
    assert gang.turn(20, a=0, b=50) == []
    assert spending.decisions == []

    assert gang.turn(10, a=0, b=0) == []
    assert spending.decisions == []
    gang.turn(1, a=0, b=0)
    assert sorted((each.reason, each.name) for each in spending.decisions) == [
        ("IdleWarning", "a"),
        ("IdleWarning", "b"),
    ]
    assert sorted(gang.turn(6, a=0, b=0)) == ["a", "b"]


def preempted(raw: Json, reason: str = "PreemptionByScheduler") -> Json:
    """The pod as it is deleted for another."""
    after = copy.deepcopy(raw)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    after["status"].setdefault("conditions", []).append(condition | {"lastTransitionTime": iso(T0)})
    after["metadata"]["deletionTimestamp"] = iso(T0 + HOUR)
    return after


class Preempted:
    """A gang, of which pods are preempted."""

    def __init__(self, spending: ClaimSpending, minimum: int, entry: str = "gpuHours: 100") -> None:
        self.spending = spending
        self.pods = {
            name: member(name, card, 3, minimum, labels={"name": name}) for card, name in enumerate("abc")
        }
        spending.start(*self.pods.values(), team_a=entry)
        spending.town.tick()
        self.evictor = GangRound(spending.context())

    def lose(self, name: str, **how: Any) -> list[str]:
        """The pod is preempted; who was asked to leave by then."""
        self.spending.town.hear("pods", preempted(self.pods[name], **how))
        return self.step()

    def step(self) -> list[str]:
        self.spending.town.tick()
        self.evictor.step()
        return self.spending.asked()


@pytest.mark.parametrize(
    ("reason", "entry", "refused"),
    [
        ("EvictionByEvictionAPI", "", ""),
        ("TerminationByKubelet", "", ""),
        ("PreemptionByScheduler", "\nprotect: {labels: {name: c}, cards: 1}", ""),
        ("PreemptionByScheduler", "", "c"),
    ],
    ids=["evicted", "ended", "one is protected", "a disruption budget keeps one"],
)
def test_what_is_left_of_a_gang_stays(spending: ClaimSpending, reason: str, entry: str, refused: str) -> None:
    """It is no preemption, or one of them may not be evicted."""
    spending.api.refusals |= dict.fromkeys(refused, (429, PDB_429))

    assert Preempted(spending, 3, f"gpuHours: 100{entry}").lose("b", reason=reason) == []


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "BursarReclaim"])
def test_what_is_left_of_a_preempted_gang_leaves_once(spending: ClaimSpending, reason: str) -> None:
    gang = Preempted(spending, 3)
    assert gang.step() == []

    assert gang.lose("b", reason=reason) == ["a", "c"]
    assert gang.step() == ["a", "c"]
    assert [each["reason"] for each in spending.api.events] == ["GangEviction"] * 2
    assert spending.decisions[0].figures["message"] == (
        "Evicted by Bursar: pods of gang g were preempted, and 2 of the 3 pods that it needs are left. "
        "All 2 pods of gang g leave together."
    )
    for name in "abc":
        spending.town.hear("pods", gang.pods[name], deleted=True)
    spending.town.advance(MINUTE)
    assert gang.step() == ["a", "c"]


def test_only_the_newest_settler_evicts_what_is_left(spending: ClaimSpending) -> None:
    gang = Preempted(spending, 3)
    spending.town.hear("pods", preempted(gang.pods["b"]))
    spending.town.tick()
    spending.town.resume()

    with pytest.raises(fencing.EpochOverError):
        gang.evictor.step()
    assert spending.asked() == []


def test_a_pod_that_is_gone_before_it_was_seen_to_be_preempted_breaks_its_gang(
    spending: ClaimSpending,
) -> None:
    gang = Preempted(spending, 3)
    spending.town.hear("pods", preempted(gang.pods["b"]), deleted=True)

    assert gang.step() == ["a", "c"]


@pytest.mark.parametrize(("minimum", "leaving"), [(3, ["b", "c"]), (2, [])])
@pytest.mark.parametrize("at_once", [False, True])
def test_what_is_left_of_a_preempted_gang_with_claims_leaves_too(
    spending: ClaimSpending, minimum: int, leaving: list[str], at_once: bool
) -> None:
    """Two of its pods have devices of claims, of which one is preempted; the third has a card, and a claim
    beside it."""
    pods = {name: member(name, size=3, minimum=minimum, make=user) for name in "ab"}
    with_card = member("c", 2, 3, minimum)
    with_card["spec"]["resourceClaims"] = [{"name": "network", "resourceClaimName": "network"}]
    claims = claim("c", "a"), claim("d", "b", devices=("gpu-1",))
    spending.start(*claims, *pods.values(), with_card, team_a="gpuHours: 100")
    evictor = GangRound(spending.context())
    spending.town.tick()
    evictor.step()
    assert spending.asked() == []

    spending.town.hear("pods", preempted(pods["a"]), deleted=at_once)
    for _ in range(2):
        spending.town.tick()
        evictor.step()

    assert sorted(spending.asked()) == leaving


def test_a_pod_with_claims_that_is_gone_with_the_preempted_one_is_not_left(spending: ClaimSpending) -> None:
    pods = [member(name, size=3, minimum=2, make=user) for name in "ab"]
    claims = claim("c", "a"), claim("d", "b", devices=("gpu-1",))
    spending.start(*claims, *pods, member("c", 2, 3, 2), team_a="gpuHours: 100")
    spending.town.tick()

    spending.town.hear("pods", pods[1], deleted=True)
    spending.town.hear("pods", preempted(pods[0]))
    spending.town.tick()
    GangRound(spending.context()).step()

    assert spending.asked() == ["c"]


def test_a_preempted_gang_goes_on_with_its_minimum(spending: ClaimSpending) -> None:
    """Also when another pod is deleted by its user later."""
    gang = Preempted(spending, 2)
    assert gang.lose("b") == []

    spending.town.hear("pods", gang.pods["c"], deleted=True)
    assert gang.step() == []
    ends = preempted(gang.pods["b"])
    ends["status"]["phase"] = "Failed"
    spending.town.hear("pods", ends)
    assert gang.step() == []


@pytest.mark.parametrize(("mark", "leaving"), [("bursar.dev/gang-started", ["a"]), ("note", [])])
def test_a_gang_that_is_preempted_while_it_starts_is_the_extenders(
    spending: ClaimSpending, mark: str, leaving: list[str]
) -> None:
    """The third pod waits; what was bound is let go once, by the deadline of the start."""
    marks = {"bursar.dev/gang-key": "bursar/g", mark: "2026-11-28T00:00:00Z"}
    first, second = (member(name, card, annotations=marks) for card, name in enumerate("ab"))
    spending.start(first, second, held_member("c", created_ms=T0), team_a="gpuHours: 100")
    evictor = GangRound(spending.context())

    spending.town.hear("pods", preempted(second))
    spending.town.advance(2 * MINUTE)
    evictor.step()

    assert spending.asked() == leaving


def test_a_gang_that_is_marked_after_a_pod_of_it_was_preempted_has_started(spending: ClaimSpending) -> None:
    """The Bindings of its pods were made at once, so none bore the mark."""
    key = {"bursar.dev/gang-key": "bursar/g"}
    first, second = (member(name, card, annotations=key) for card, name in enumerate("ab"))
    spending.start(first, second, team_a="gpuHours: 100")
    evictor = GangRound(spending.context())
    spending.town.hear("pods", preempted(second))
    spending.town.tick()

    first["metadata"]["annotations"]["bursar.dev/gang-started"] = "2026-11-28T00:00:00Z"
    spending.town.hear("pods", first)
    spending.town.tick()
    evictor.step()

    assert spending.asked() == ["a"]


@pytest.mark.parametrize(("minimum", "leaving"), [(3, ["b"]), (2, [])])
def test_one_of_a_preempted_gang_that_has_ended_well_is_not_missed(
    spending: ClaimSpending, minimum: int, leaving: list[str]
) -> None:
    """Its Job makes no other in its place: of three that are needed two are since, of two one."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    pods = [member(name, card, 3, minimum) for card, name in enumerate("ab")]
    pods.append(member("c", 2, 3, minimum, ended_ms=T0, phase="Succeeded"))
    for raw in pods:
        raw["metadata"]["ownerReferences"] = [job]
    spending.start(*pods, team_a="gpuHours: 100")
    evictor = GangRound(spending.context())
    spending.town.tick()

    spending.town.hear("pods", preempted(pods[0]))
    spending.town.tick()
    evictor.step()

    assert spending.asked() == leaving


FORGIVEN, OTHER = "bursar.dev/gang-forgiven", "team.example/wait"


def marked(name: str, *finalizers: str, **metadata: object) -> Json:
    """A pod with these finalizers, as an older extender noted that its gang did not start."""
    raw = pod(name, annotations={FORGIVEN: iso(T0 + MINUTE)})
    return {**raw, "metadata": raw["metadata"] | {"finalizers": [*finalizers]} | metadata}


def test_pods_that_an_older_extender_marked_go_and_are_charged_from_their_bindings(town: Town) -> None:
    """Also one that is not being deleted yet: the next release would never let it go."""
    leaves = {"deletionTimestamp": iso(T0 + 90 * SECOND), "deletionGracePeriodSeconds": 30}
    leaving, stays = marked("a", OTHER, FORGIVEN, **leaves), marked("b", FORGIVEN)
    calls: list[tuple[str, str, Json]] = []
    answer = Answered(200, {})

    def call(method: str, path: str, body: Json, **_more: object) -> Answered:
        calls.append((method, path.rpartition("/")[2], body))
        return answer

    def step() -> list[tuple[str, str, Json]]:
        calls.clear()
        shared = town.store, town.settler.epoch, cast(Api, SimpleNamespace(call=call)), cast(Any, None)
        remove_finalizers(EvictorContext(*shared, lambda: town.settler.view, town.clock))
        return calls

    town.hear("pods", leaving)
    assert step() == []  # the ledger does not know it yet
    town.begin(("pods", stays), ("pods", marked("c", OTHER)))
    removes = {"$deleteFromPrimitiveList/finalizers": [FORGIVEN]}
    assert step() == [("PATCH", name, {"metadata": {"uid": f"uid-{name}", **removes}}) for name in "ab"]
    answer = Answered(404, {"message": "not found"})
    assert len(step()) == 2  # gone meanwhile
    answer = Answered(403, {"message": "no right"})
    with pytest.raises(RuntimeError, match=f"finalizer {FORGIVEN} of 2 pods: 403 no right"):
        step()

    town.advance(70 * SECOND)
    ended = {**leaving, "status": pod("a", ended_ms=T0 + 70 * SECOND)["status"]}
    town.change("pods", {**ended, "metadata": ended["metadata"] | {"finalizers": [OTHER]}})
    assert town.postings("uid-a") == [(T0, T0 + 70 * SECOND, 1000, "settled")]
