"""Pods that share a claim leave together, or none does: budgets, claims and their pods in a real settler, an
API server whose answers are told, and a clock turned by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.ledger.test_budget_evictions import ONE_HOUR, SETTINGS, Spending, pod
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets, node
from timekeeper.settler.evictions import reasons
from timekeeper.settler.evictions.rounds import OvertimeRound

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"

CLAIMS = "resourceclaims"
SLICE = device_slice(*(f"gpu-{place}" for place in range(8)))


def user(name: str, **fields: Any) -> Json:
    """A pod that admission governed for its claims, and that has a node."""
    made = pod(name, **fields)
    made["metadata"]["annotations"] = {"bursar.dev/claims": "1", "bursar.dev/standing": "IN_BUDGET"}
    made["metadata"]["annotations"] |= fields.get("annotations", {})
    made["metadata"]["labels"] = {"bursar.dev/governed": "true"} | fields.get("labels", {})
    made["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    made["spec"]["containers"][0]["resources"] = {}
    return made


def claim(name: str, *users: str, devices: tuple[str, ...] = ("gpu-0",), **more: Any) -> Json:
    """It holds these devices from T0 on for these pods."""
    uids = tuple(f"uid-{each}" for each in users)
    return device_claim(name, *map(allocated, devices), at_ms=T0, pods=uids, **more)


class ClaimSpending(Spending):
    """Budgets that claims spend. A claim is freed once its pods are gone, as by the controller."""

    def start(self, *objects: Json, **entries: str) -> None:
        """Pods and claims, as they are told apart by their specs."""
        entries = {"_settings": SETTINGS} | entries
        claims = [each for each in objects if "devices" in each["spec"]]
        pods = [each for each in objects if "devices" not in each["spec"]]
        self.town.begin(
            ("nodes", node(cards=8)),
            ("configmaps", budgets(**entries)),
            ("resourceslices", SLICE),
            *(("pods", each) for each in pods),
            *((CLAIMS, each) for each in claims),
        )
        self.evictor = self.new_evictor()

    def turn(self, ms: int) -> list[str]:
        """As before; the claims are heard, too."""
        return self.later(*[10 * SECOND] * (ms // (10 * SECOND)))

    def later(self, *spans_ms: int) -> list[str]:
        gone: list[str] = []
        for span_ms in spans_ms:
            self.town.clock.turn(span_ms)
            self.town.quiet(CLAIMS)
            self.town.advance()
            gone += self.look()
        return sorted(gone)

    def join(self, claim_name: str, *users: str, **more: Any) -> None:
        """The claim is reserved for these pods now."""
        self.town.change(CLAIMS, claim(claim_name, *users, **more))


@pytest.fixture
def spending(town: Town, tmp_path: Path) -> Iterator[ClaimSpending]:
    api = FakeApiServer()
    with serving(api) as url:
        yield ClaimSpending(town, api, url, tmp_path)


def test_a_pod_with_a_claim_alone_gets_its_notice_and_leaves_when_the_claim_has_spent_the_budget(
    spending: ClaimSpending,
) -> None:
    spending.start(claim("c", "p"), user("p"), team_a=ONE_HOUR)
    assert spending.later(HOUR - 10 * SECOND) == []
    assert spending.notice("p") is None

    assert spending.turn(20 * SECOND) == []
    assert spending.notice("p") == T0 + HOUR + 5 * MINUTE
    assert spending.later(4 * MINUTE + 40 * SECOND) == []
    assert spending.turn(20 * SECOND) == ["p"]

    conditions = [body["status"]["conditions"][0] for _, body in spending.api.patches if "status" in body]
    assert [each["reason"] for each in conditions] == ["BursarBudgetExhausted"]
    assert {each["reason"] for each in spending.api.events} == {reasons.NOTICE, reasons.SPENT}


def test_pods_that_share_a_claim_leave_at_once_in_the_turn_of_the_last_of_them(
    spending: ClaimSpending,
) -> None:
    """A pod of its own claim with less priority than one of the sharers goes before; each takes the time of
    one eviction."""
    spending.start(
        claim("c", "p", "q", "r"),
        claim("d", "s", devices=("gpu-1",)),
        claim("e", "t", devices=("gpu-2",)),
        *(user("p", priority=9), user("q", priority=-9), user("r"), user("s", priority=1)),
        user("t", priority=10),
        team_a=ONE_HOUR,
    )
    spending.later(20 * MINUTE, 5 * MINUTE - 10 * SECOND)

    left = [spending.turn(10 * SECOND) for _ in range(7)]

    assert left == [["s"], ["p", "q", "r"], [], [], ["t"], [], []]


def test_where_a_disruption_budget_allows_fewer_evictions_than_there_are_sharers_none_leaves(
    spending: ClaimSpending,
) -> None:
    """Each of them alone would be allowed."""
    spending.start(claim("c", "p", "q"), user("p"), user("q"), team_a=ONE_HOUR)
    web = {"matchLabels": {"app": "web"}}
    for name in ("p", "q"):
        metadata = {"uid": f"uid-{name}", "labels": {"app": "web"}}
        spending.api.named[name] = {"metadata": metadata}
    spending.api.budgets = [{"spec": {"selector": web}, "status": {"disruptionsAllowed": 1}}]
    spending.later(HOUR, 5 * MINUTE)

    assert spending.later(5 * MINUTE) == []
    assert spending.api.evictions == []
    spending.api.budgets[0]["status"] = {"disruptionsAllowed": 2}
    assert spending.turn(20 * SECOND) == ["p", "q"]


def test_a_protected_pod_keeps_those_that_share_its_claim_and_no_others(spending: ClaimSpending) -> None:
    """``q`` also shares a claim with ``r``, which ends: it leaves for that."""
    protecting = ONE_HOUR + "\nprotect: {labels: {keep: me}, cards: 1}"
    spending.start(
        claim("c", "p", "o", "q"),
        claim("d", "q", "r", devices=("gpu-1",)),
        *(user("p", labels={"keep": "me"}), user("o"), user("q"), user("r")),
        team_a=protecting,
    )
    spending.later(30 * MINUTE)

    assert spending.notice("p") is spending.notice("o") is None
    assert spending.later(5 * MINUTE, 5 * MINUTE) == ["q", "r"]


def test_a_claim_that_is_not_within_the_floor_protects_nobody(spending: ClaimSpending) -> None:
    protecting = ONE_HOUR + "\nprotect: {labels: {keep: me}, cards: 1}"
    two = claim("c", "p", "q", devices=("gpu-0", "gpu-1"))
    spending.start(two, user("p", labels={"keep": "me"}), user("q"), team_a=protecting)

    assert spending.later(30 * MINUTE, 5 * MINUTE) == ["p", "q"]


def test_a_claim_of_several_protected_pods_takes_its_part_of_the_floor_once(spending: ClaimSpending) -> None:
    protecting = ONE_HOUR + "\nprotect: {labels: {keep: me}, cards: 1.1}"
    mine = {"keep": "me"}
    shared = claim("c", "p", "q", "r")
    spending.start(shared, *(user(name, labels=mine) for name in ("p", "q", "r")), team_a=protecting)

    assert spending.later(HOUR, 5 * MINUTE, 5 * MINUTE) == []
    assert spending.town.settler.ledger.protected["team-a"].uids == {"uid-p", "uid-q", "uid-r"}


def test_a_floor_of_hours_protects_no_pod_whose_claims_would_not_be_taken_from_it(
    spending: ClaimSpending,
) -> None:
    """A claim that has the labels itself is counted, and protects."""
    protecting = ONE_HOUR + "\nprotect: {labels: {keep: me}, hours: 100}"
    counted = claim("d", "r", devices=("gpu-1",))
    counted["metadata"]["labels"] = mine = {"keep": "me"}
    spending.start(
        claim("c", "p"), counted, user("p", labels=mine), user("r", labels=mine), team_a=protecting
    )

    assert spending.later(30 * MINUTE, 5 * MINUTE, 5 * MINUTE) == ["p"]
    assert spending.notice("r") is None


def test_a_pod_that_comes_to_share_a_claim_puts_nothing_off(spending: ClaimSpending) -> None:
    spending.start(claim("c", "p"), user("p"), team_a=ONE_HOUR)
    spending.later(HOUR, 4 * MINUTE)
    spending.town.hear("pods", user("q"))
    spending.join("c", "p", "q")
    spending.turn(10 * SECOND)

    assert spending.notice("q") == spending.notice("p") == T0 + HOUR + 5 * MINUTE
    assert spending.turn(MINUTE) == ["p", "q"]


def test_a_pod_that_is_about_to_get_its_node_is_waited_for(spending: ClaimSpending) -> None:
    spending.start(claim("c", "o", "p"), user("o"), user("p"), team_a=ONE_HOUR)
    spending.later(HOUR, 4 * MINUTE)
    spending.town.hear("pods", user("q", node=""))
    spending.join("c", "o", "p", "q")

    assert spending.turn(MINUTE + 30 * SECOND) == []
    spending.town.change("pods", user("q"))
    assert spending.turn(20 * SECOND) == ["o", "p", "q"]


def test_a_claim_of_others_than_pods_ends_with_no_pod_and_evicts_none(spending: ClaimSpending) -> None:
    shared = claim("c", "p")
    shared["status"]["reservedFor"].append({"apiGroup": "scheduling.k8s.io", "resource": "podgroups"})
    spending.start(shared, user("p"), team_a=ONE_HOUR)

    assert spending.later(HOUR, 5 * MINUTE, 5 * MINUTE) == []
    assert spending.notice("p") is None


def test_pods_that_only_look_at_devices_stay(spending: ClaimSpending) -> None:
    watching = device_claim("w", allocated("gpu-1", adminAccess=True), at_ms=T0, pods=("uid-w",))
    spending.start(claim("c", "p"), watching, user("p"), user("w"), team_a=ONE_HOUR)

    assert spending.later(HOUR, 5 * MINUTE, 5 * MINUTE) == ["p"]
    assert spending.notice("w") is None


def test_a_settler_that_takes_over_knows_who_shares(spending: ClaimSpending) -> None:
    spending.start(claim("c", "p", "q"), user("p"), user("q"), team_a=ONE_HOUR)
    spending.later(HOUR, 4 * MINUTE)
    spending.restart()

    assert spending.turn(MINUTE + 20 * SECOND) == ["p", "q"]


def test_pods_that_were_created_without_enforcement_keep_those_that_share_with_them(
    spending: ClaimSpending,
) -> None:
    old = user("p", labels={"bursar.dev/governed": ""})
    spending.start(claim("c", "p", "q"), old, team_a=ONE_HOUR + "\nmode: meter")
    spending.later(30 * MINUTE)
    spending.town.change("configmaps", budgets(_settings=SETTINGS, team_a=ONE_HOUR))
    spending.later(5 * MINUTE)
    spending.town.hear("pods", user("q", age_ms=-35 * MINUTE))
    spending.join("d", "q", devices=("gpu-1",))

    assert spending.later(20 * MINUTE, 5 * MINUTE, 5 * MINUTE) == ["q"], "for its own claim"
    assert spending.notice("p") is None


def late(name: str, seconds: int = 600) -> Json:
    """A pod with a claim that declared so long a time."""
    return user(name, annotations={"bursar.dev/held": "budget", "bursar.dev/declared": str(seconds)})


def test_pods_that_share_a_claim_leave_when_the_declared_time_of_all_is_over(spending: ClaimSpending) -> None:
    budget = "gpuHours: 100\nreserve: declared\nrequireDuration: true\novertime: evict"
    spending.start(claim("c", "p", "q"), late("p"), late("q", seconds=900), team_a=budget)
    evictor = OvertimeRound(spending.context())

    def turn(ms: int) -> list[str]:
        spending.town.quiet(CLAIMS)
        spending.town.advance(ms)
        evictor.step()
        return spending.asked()

    assert turn(10 * MINUTE) == []
    assert {each["regarding"]["name"] for each in spending.api.events} == {"p"}
    assert turn(4 * MINUTE + 50 * SECOND) == []
    assert turn(30 * SECOND) == []
    assert turn(30 * SECOND) == ["p", "q"]
