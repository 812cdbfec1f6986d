"""What one worker counts of the pods that no table of standings knows yet: calls of /mutate without and with
marks, and what /validate admits, by name."""

import gc
import weakref
from collections import Counter
from itertools import count
from typing import Any

import orjson
import pytest

from tests.runtime.lines import into
from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.process_metrics import of_this_process
from tests.webhook.worlds import (
    POLICY,
    admitted,
    governed,
    half,
    patch_of,
    patched,
    review,
    review_of,
)
from tests.worlds import Json, container
from timekeeper.core.admission.table import StandingsTable
from timekeeper.core.decisions import Decision
from webhook.server.app import create_calls
from webhook.server.owner_events import OwnerEvents
from webhook.server.reviewer import Reviewer
from webhook.server.simulation import simulation_call
from webhook.standings import AdmissionCounts, decode

HALF = 500 * 600_000  # what half a card takes over the lookahead of ten minutes
THREE = 3 * HALF
GENERATED = 1_750_000_000_000
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}


class World:
    """One worker with a clock that is turned by hand, and its calls as the API server makes them for a pod:
    /mutate, and /validate of what it patched and named. ``namespaces``: their entries."""

    def __init__(self, **namespaces: Json) -> None:
        self.now_ms, self.namespaces, self.numbers = 0, namespaces, count()
        self.table: StandingsTable | None = None
        self.reads(0)
        self.reviewer = Reviewer(POLICY, lambda: self.table, lambda: "ca", lambda: self.now_ms, 30_000)
        self.recorded: list[Decision] = []
        self.events: list[str] = []

        def post(owner: dict[str, str], reason: str, text: str, _: str) -> None:
            self.events.append(f"{owner['kind']}/{owner['name']} {reason}: {text}")

        self.calls = create_calls(
            self.reviewer,
            of_this_process(),
            into([]),
            notice=OwnerEvents(post, lambda: 0),
            record=self.recorded.append,
        )

    def reads(self, at_ms: int, tick_ms: int | None = None, **changed: Json) -> None:
        """At this moment the worker reads a table of a tick at ``tick_ms``."""
        self.now_ms, self.namespaces = at_ms, {**self.namespaces, **changed}
        document = standings({"lookaheadMs": 600_000}, "1", **self.namespaces)
        document["generated"] = GENERATED + (at_ms if tick_ms is None else tick_ms)
        self.table = decode(orjson.dumps(document), str(next(self.numbers)), at_ms)

    def mutates(self, raw: Json, **request: Any) -> tuple[Json, Json]:
        """The response, and the pod after it."""
        answer = self._asks("/mutate", raw, **request)
        return answer, patched(raw, patch_of(answer))

    def creates(self, name: str = "", raw: Json | None = None, **request: Any) -> str:
        """What becomes of a pod: its standing, `held`, or which webhook refuses it."""
        answer, governed_pod = self.mutates(admitted(half()) if raw is None else raw, **request)
        if not answer["allowed"]:
            return "refused by /mutate"
        return self.checks(governed_pod, name, **request)

    def checks(self, governed_pod: Json, name: str = "", **request: Any) -> str:
        """The same of a pod after /mutate."""
        named = {**governed_pod["metadata"], "name": name or f"p{next(self.numbers)}", "uid": "x"}
        answer = self._asks("/validate", {**governed_pod, "metadata": named}, **request)
        if not answer["allowed"]:
            assert "will use the remaining GPU budget" in answer["status"]["message"]
            return "refused"
        annotations = governed_pod["metadata"]["annotations"]
        return "held" if "bursar.dev/held" in annotations else str(annotations["bursar.dev/standing"])

    def _asks(self, path: str, raw: Json, **request: Any) -> Json:
        answer = self.calls[path](orjson.dumps(review_of(raw, **request)))
        assert isinstance(answer.body, bytes)
        response: Json = orjson.loads(answer.body)["response"]
        return response


def denying(left: int = THREE, **fields: Any) -> Json:
    """The entry of a namespace in budget to which so much remains."""
    return entry(remaining=left, onExhausted="deny", **fields)


COPY = governed(admitted(half()))
BEYOND = {
    "deprioritize": "OVER_BUDGET",
    "reclaim": "OVER_BUDGET",
    "deny": "refused",
    "hold": "held",
    "evict": "held",
}


# what a worker lets through


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("action", BEYOND)
def test_of_forty_pods_as_many_are_in_budget_as_what_is_left_pays(action: str, copied: bool) -> None:
    """Half a GPU-hour is left, each of 40 pods takes a twenty-fourth of an hour."""
    world = World(team_a=entry(remaining=12 * HALF, onExhausted=action))
    raw = COPY if copied else None

    found = Counter(world.creates(raw=raw) for _ in range(40))

    assert found == {"IN_BUDGET": 12, BEYOND[action]: 28}


@pytest.mark.parametrize("action", BEYOND)
def test_the_last_pod_in_budget_is_the_first_that_is_not_paid_whole(action: str) -> None:
    world = World(team_a=entry(remaining=2 * HALF + 1, onExhausted=action))

    assert [world.creates() for _ in range(4)] == ["IN_BUDGET"] * 3 + [BEYOND[action]]


def test_all_calls_of_mutate_before_those_of_validate_are_counted_by_each_alone() -> None:
    world = World(team_a=denying())
    pods = [world.mutates(admitted(half()))[1] for _ in range(8)]

    assert {pod["spec"]["priorityClassName"] for pod in pods} == {POLICY.in_budget.name}
    assert [world.checks(pod) for pod in pods] == ["IN_BUDGET"] * 3 + ["refused"] * 5


@pytest.mark.parametrize("order", ["after another", "all first ones before"])
def test_a_second_call_counts_nothing_twice(order: str) -> None:
    """As where another webhook adds a container to each pod."""
    world = World(team_a=entry(remaining=THREE, onExhausted="deprioritize"))
    if order == "after another":
        found = [world.creates(raw=world.mutates(admitted(half()))[1]) for _ in range(5)]
    else:
        firsts = [world.mutates(admitted(half()))[1] for _ in range(5)]
        found = [world.creates(raw=first) for first in firsts]

    assert found == ["IN_BUDGET"] * 3 + ["OVER_BUDGET"] * 2


def test_plain_pods_are_compared_with_the_larger_sum_which_may_be_that_of_copies() -> None:
    world = World(team_a=entry(remaining=THREE, onExhausted="hold"))

    assert [world.creates(raw=COPY) for _ in range(4)] == ["IN_BUDGET"] * 3 + ["held"]
    assert world.creates() == "held"


def test_whoever_mixes_plain_pods_and_copies_gains_a_factor_of_two() -> None:
    for action in ("hold", "deprioritize"):
        world = World(team_a=entry(remaining=THREE, onExhausted=action))
        found = [world.creates(raw=COPY if number % 2 else None) for number in range(20)]

        assert found.count("IN_BUDGET") == 6
    world = World(team_a=denying())
    assert [world.creates(raw=COPY if number % 2 else None) for number in range(20)].count("IN_BUDGET") == 3


# what counts


def test_a_name_counts_once_at_its_largest_amount() -> None:
    world = World(team_a=denying(), team_b=denying())
    large = admitted(container(gpu_percent="100"))

    assert {world.creates("p") for _ in range(20)} == {"IN_BUDGET"}
    assert world.creates("p", large) == "IN_BUDGET"
    assert world.creates("p") == "IN_BUDGET"
    assert [world.creates(name) for name in ("q", "r")] == ["IN_BUDGET", "refused"]
    assert world.creates("p", namespace="team-b") == "IN_BUDGET"


def test_dry_runs_and_refused_and_held_pods_count_nowhere() -> None:
    for action in BEYOND:
        world = World(team_a=entry(remaining=THREE, onExhausted=action))
        for _ in range(5):
            assert world.creates(dryRun=True) == "IN_BUDGET"
            assert not world.mutates(admitted(container(gpu_percent="150")))[0]["allowed"]
            changed = world.mutates(admitted(half()), dryRun=True)[1]
            changed["metadata"]["annotations"]["bursar.dev/request"] = "{}"
            assert world.calls["/validate"](orjson.dumps(review_of(changed))).status == 200
        assert [world.creates() for _ in range(4)] == ["IN_BUDGET"] * 3 + [BEYOND[action]]
        assert world.creates(dryRun=True) == BEYOND[action]
    held = World(team_a=denying(hold="turn"))
    assert {held.creates() for _ in range(9)} == {"held"}
    held.namespaces["team_a"] = denying()
    held.reads(1)
    assert [held.creates() for _ in range(4)] == ["IN_BUDGET"] * 3 + ["refused"]


def test_only_a_budget_that_denies_refuses_by_what_validate_counts() -> None:
    for action in BEYOND:
        world = World(team_a=entry(remaining=1, onExhausted=action))
        pods = [world.mutates(admitted(half()), dryRun=True)[1] for _ in range(9)]

        found = [world.checks(pod) for pod in pods]

        assert found == ["IN_BUDGET"] + (["refused"] if action == "deny" else ["IN_BUDGET"]) * 8


def test_a_refusal_by_validate_has_its_record_and_its_owners_event() -> None:
    world = World(team_a=denying(1))
    owned = admitted(half())
    owned["metadata"]["ownerReferences"] = [OWNER]

    assert [world.creates(f"train-{number}", owned) for number in range(2)] == ["IN_BUDGET", "refused"]

    (found,) = world.recorded
    assert (found.kind, found.reason, found.name) == ("refused", "BudgetExhausted", "train-1")
    (event,) = world.events
    assert event.startswith("Job/train OverBudget: Its new pods are refused: Namespace team-a: pods admitted")


def test_a_refusal_by_validate_keeps_the_warnings_of_rules_that_only_warn() -> None:
    world = World(team_a=denying(1, rules={"host-pid": "warn"}))
    world.creates()
    pod = world.mutates(admitted(half(), hostPID=True))[1]
    pod["metadata"]["name"] = "second"

    answer = world.calls["/validate"](orjson.dumps(review_of(pod)))

    assert isinstance(answer.body, bytes)
    response = orjson.loads(answer.body)["response"]
    assert not response["allowed"]
    assert [warning.partition(":")[0] for warning in response["warnings"]] == ["spec.hostPID"]


@pytest.mark.parametrize("left", [1_200, 400])
def test_a_protected_pod_takes_of_its_floor_and_is_not_refused(left: int) -> None:
    selects = {"labels": {"tier": "serving"}, "owners": [], "cards": 2_000, "amount": None}
    world = World(team_a=denying(1, protect=selects | {"left": left, "uids": [], "turns": False}))
    serving = admitted(half())
    serving["metadata"]["labels"] = {"tier": "serving"}
    world.creates()

    found = [world.creates(raw=serving) for _ in range(3)]

    assert found == ["IN_BUDGET"] * (left // 500) + ["refused"] * (3 - left // 500)
    assert world.creates() == "refused"


def test_pods_of_a_simulation_count_for_each_other_under_deny_too() -> None:
    world = World(team_a=denying())
    body = orjson.dumps({"reviews": [review_of(admitted(half()), dryRun=True)] * 5})

    for _ in range(2):
        answer = simulation_call(world.reviewer, into([]))(body)
        assert isinstance(answer.body, bytes)
        pods = orjson.loads(answer.body)["answers"]
        assert [bool(pod["refusal"]) for pod in pods] == [False] * 3 + [True] * 2
        assert [pod["pod"] is None for pod in pods] == [False] * 3 + [True] * 2
    assert [world.creates() for _ in range(4)] == ["IN_BUDGET"] * 3 + ["refused"]


# how long it counts


def full(action: str) -> World:
    """A worker that has let through at 10 s what remained, by a table that it had read at 9.9 s."""
    world = World(team_a=entry(remaining=THREE, onExhausted=action))
    world.creates(dryRun=True)
    world.reads(9_900)
    world.now_ms = 10_000
    assert [world.creates() for _ in range(4)] == ["IN_BUDGET"] * 3 + [BEYOND[action]]
    return world


@pytest.mark.parametrize("action", BEYOND)
def test_a_count_goes_with_the_first_table_that_is_two_seconds_later(action: str) -> None:
    world = full(action)

    world.reads(11_999)
    assert world.creates(dryRun=True) == BEYOND[action]
    world.reads(12_000)
    assert world.creates(dryRun=True) == "IN_BUDGET"


@pytest.mark.parametrize("action", BEYOND)
def test_no_304_ends_a_count_and_thirty_seconds_do(action: str) -> None:
    world = full(action)
    assert world.table is not None

    for now_ms in range(11_000, 40_000, 1_000):
        world.now_ms, world.table = now_ms, world.table.confirmed(now_ms)
        assert world.creates(dryRun=True) == BEYOND[action]
    world.now_ms = 39_999
    assert world.creates(dryRun=True) == BEYOND[action]
    world.now_ms, world.table = 40_000, world.table.confirmed(40_000)
    assert world.creates(dryRun=True) == "IN_BUDGET"


@pytest.mark.parametrize(
    ("reads", "ends"),
    [
        # (when it is read, its tick by the timekeeper's clock)
        ([(20_000, 20_000)], True),
        ([(20_000, 11_900)], False),  # read late, after the timekeeper was away
        ([(20_000, 12_000)], True),
        ([(12_000, 3_612_000)], True),  # the timekeeper's clock is set forward
        ([(11_900, 3_612_000)], False),
        ([(12_000, -3_588_000)], False),  # and back
        ([(12_000, -3_588_000), (12_900, -3_587_100)], True),
        ([(11_000, -3_589_000), (11_900, -3_588_100)], False),
    ],
)
def test_the_tick_that_a_table_names_decides_by_the_time_since_the_one_before(
    reads: list[tuple[int, int]], ends: bool
) -> None:
    world = full("deny")

    for at_ms, tick_ms in reads:
        world.reads(at_ms, tick_ms)
        standing = world.creates(dryRun=True)

    assert standing == ("IN_BUDGET" if ends else "refused")


def test_the_first_table_of_all_ends_no_count_for_its_tick_may_be_long_ago() -> None:
    world = World(team_a=denying(3 * 500 * 5_000))  # without a table a pod counts for five seconds
    world.table = None
    assert [world.creates() for _ in range(3)] == ["UNKNOWN"] * 3

    world.reads(5_000)

    assert world.creates() == "refused"


def test_a_name_that_comes_again_counts_from_then_on() -> None:
    counts = AdmissionCounts()
    counts.add("a", "p", 5, 1, 0)
    counts.add("a", "q", 7, 0, 1_000)
    counts.add("a", "p", 3, 2, 2_000)

    assert (counts.spent("a"), counts.spent("a", "p"), counts.spent("b")) == ((12, 2), (7, 0), (0, 0))
    counts.forget(1_000)
    assert counts.spent("a") == (5, 2)
    counts.forget(1_999)
    assert counts.spent("a") == (5, 2)
    counts.forget(2_000)
    assert counts.spent("a") == (0, 0)


class Name(str):
    """A namespace's name of which is known whether anybody still holds it."""


def test_a_namespace_that_never_comes_again_is_forgotten() -> None:
    counts, held = AdmissionCounts(), weakref.WeakSet[Name]()
    for number in range(100):
        name = Name(f"team-{number}")
        held.add(name)
        counts.add(name, number, number % 3, 0, 1_000 * number)
        counts.forget(1_000 * number - 5_000)
    del name

    gc.collect()
    assert sorted(held) == [f"team-{number}" for number in range(95, 100)]


# groups: 300 hours are left, as in a public report


HOURS_300 = 300 * 3_600_000_000
LARGE = admitted(container("a", gpu_percent="6400"), container("b", gpu_percent="6400"))  # 21.3 hours


def in_lab(**fields: Any) -> Json:
    """The entry of a namespace whose group decides, and denies."""
    return denying(HOURS_300, group="lab", groupDecides=True, **fields)


def spent_in_lab(**fields: Any) -> Json:
    """The entry of one that is over its own budget, beside such a group."""
    left = {"remaining": HOURS_300, "onExhausted": "deny"}
    return entry("OVER_BUDGET", remaining=0, group="lab", groupLeft=left, **fields)


def test_creations_that_fail_in_one_namespace_refuse_nobody_else_in_the_group() -> None:
    """Twenty posts of one name, that answer 409; and twenty of other names, that a ResourceQuota refuses."""
    for names in (["p"] * 20, [f"p{number}" for number in range(20)]):
        world = World(failing=spent_in_lab(), unlimited=in_lab(), other=in_lab())
        world.now_ms = 100
        assert {world.creates(name, LARGE, namespace="failing") for name in names} == {"OVER_BUDGET"}
        assert {world.creates(name, LARGE, namespace="unlimited") for name in names[:10]} == {"IN_BUDGET"}

        assert [world.creates(namespace="other") for _ in range(6)] == ["IN_BUDGET"] * 6


@pytest.mark.parametrize("action", BEYOND)
def test_of_a_group_each_member_gets_what_remained_and_less_than_one_pod_more(action: str) -> None:
    """Whether its own budget, or none, stands beside the group's."""
    left = {"remaining": THREE - 1, "onExhausted": action}
    world = World(
        decided=entry(remaining=THREE - 1, onExhausted=action, group="lab", groupDecides=True),
        own=entry(remaining=HOURS_300, onExhausted="deprioritize", group="lab", groupLeft=left),
        denied=denying(HOURS_300, group="lab", groupLeft=left),
    )

    for namespace in ("decided", "own", "denied"):
        found = [world.creates(namespace=namespace) for _ in range(5)]
        assert found == ["IN_BUDGET"] * 3 + [BEYOND[action]] * 2


def test_where_both_are_used_up_the_own_action_applies_and_the_groups_where_that_denies() -> None:
    left = {"remaining": HALF, "onExhausted": "hold"}
    own = World(team_a=entry(remaining=HALF, onExhausted="reclaim", group="lab", groupLeft=left))
    denied = World(team_a=denying(HALF, group="lab", groupLeft=left))

    assert [own.creates() for _ in range(2)] == ["IN_BUDGET", "OVER_BUDGET"]
    assert [denied.creates() for _ in range(2)] == ["IN_BUDGET", "held"]
    admission = own.reviewer.mutate(review(admitted(half()))).admission
    assert admission is not None
    assert (admission.standing.on_exhausted, admission.standing.remaining) == ("reclaim", HALF)
