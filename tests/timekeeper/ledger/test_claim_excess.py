"""Pods whose claims became others after they were judged: they leave once these hold more GPUs. Budgets,
claims and their pods in a real settler, an API server whose answers are told, and a clock turned by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.timekeeper.claims import allocated, device_claim
from tests.timekeeper.clocks import iso
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.leaving import PDB_429
from tests.timekeeper.ledger.test_claim_evictions import CLAIMS, ClaimSpending, user
from tests.timekeeper.ledger.test_held_claims import device_class
from tests.timekeeper.ledger.test_held_claims import settings as class_settings
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets, node
from timekeeper.settler.evictions import reasons
from timekeeper.settler.evictions.claim_excess import ExcessRound
from timekeeper.settler.evictions.rounds import WRITTEN_MS
from timekeeper.store import fencing

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"

RECORD = "bursar.dev/claims"
RICH = "gpuHours: 1000"
DRIVERS = {
    "gpu": "gpu.nvidia.com",
    "example": "gpu.example.com",
    "nic": "nic.example.com",
    "odd": "odd.example.com",
}
LISTED = {"noGPUDrivers": "nic.example.com"}


def holding(name: str, *users: str, of: str = "gpu", devices: int = 1, driver: str = "", **more: Any) -> Json:
    """A claim that holds so many devices of a class for these pods."""
    every = (allocated(f"{name}-{place}", driver=driver or DRIVERS[of], **more) for place in range(devices))
    raw = device_claim(name, *every, at_ms=T0, pods=tuple(f"uid-{each}" for each in users))
    raw["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = of
    return raw


def judged(name: str, record: str | None = "1", **fields: Any) -> Json:
    """A pod with claims that was judged for so many GPUs; None: nothing was recorded."""
    raw = user(name, **fields)
    if record is None:
        del raw["metadata"]["annotations"][RECORD]
    else:
        raw["metadata"]["annotations"][RECORD] = record
    return raw


class Excesses(ClaimSpending):
    """Claims and pods, and who evicts those with too much."""

    def begins(self, *objects: Json, settings: Json | None = None, **entries: str) -> None:
        """The classes are there, of drivers that are told apart by the settings."""
        self.town.begin(
            ("nodes", node(cards=8)),
            ("configmaps", budgets(**({"team_a": RICH} | entries))),
            ("configmaps", settings or class_settings(**LISTED)),
            *(("deviceclasses", device_class(*each)) for each in DRIVERS.items()),
            *((CLAIMS if "devices" in each["spec"] else "pods", each) for each in objects),
        )
        self.takes_over()

    def takes_over(self) -> None:
        """Of a process that has just begun to settle."""
        self.evictor = self.new_evictor()
        self.round = ExcessRound(self.context())

    def asked_now(self) -> list[str]:
        """The pods that one round asks to leave, or deletes."""
        evicted, deleted = len(self.api.evictions), len(self.api.deletions)
        self.round.step()
        gone = [each["metadata"]["name"] for each in self.api.evictions[evicted:]]
        gone = [each for each in gone if each not in self.api.refusals]
        return sorted([*gone, *(each["path"].split("/")[-1] for each in self.api.deletions[deleted:])])


@pytest.fixture
def excess(town: Town, tmp_path: Path) -> Iterator[Excesses]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Excesses(town, api, url, tmp_path)


def test_a_pod_whose_claim_holds_more_than_it_was_judged_for_leaves_and_is_told_why(excess: Excesses) -> None:
    excess.begins(holding("c", "p", devices=2), holding("d", "q", devices=2), judged("p"), judged("q", "2"))

    assert excess.asked_now() == ["p"]

    (event,) = excess.api.events
    assert (event["reason"], event["regarding"]["name"]) == (reasons.CLAIM_EXCESS, "p")
    assert "its claims hold 2 GPUs, and were judged for 1" in event["note"]
    ((_, written),) = excess.api.patches
    assert written["status"]["conditions"][0]["reason"] == "BursarClaim"
    (decision,) = excess.decisions
    assert (decision.kind, decision.figures["devices"], decision.figures["judged"]) == ("evicted", 2, 1)


def test_a_pod_of_claims_of_no_gpus_leaves_once_one_holds_a_gpu_and_one_without_a_record_stays(
    excess: Excesses,
) -> None:
    """A pod without a record was created where admission does not look, and one that is not released yet is
    not judged."""
    names = {"none": "0", "exempt": None, "waits": "unknown"}
    claims = [holding(f"c-{name}", name) for name in names]
    excess.begins(*claims, *(judged(name, record) for name, record in names.items()))

    assert excess.asked_now() == ["none"]


def test_the_claims_of_a_pod_count_together_and_admin_access_does_not(excess: Excesses) -> None:
    excess.begins(
        *(holding("c", "p"), holding("d", "p"), judged("p")),
        *(holding("e", "q"), holding("f", "q", devices=3, adminAccess=True), judged("q")),
    )

    assert excess.asked_now() == ["p"]


@pytest.mark.parametrize(
    ("claimed", "said", "leaves"),
    [
        ({"of": "nic"}, LISTED, False),
        ({"of": "example"}, LISTED, True),
        ({"of": "example"}, {"noGPUDrivers": "gpu.example.com"}, False),
        ({"of": "odd"}, LISTED, True),
        ({"of": "odd"}, {"unknownClasses": "free"}, False),
        ({"of": "odd"}, {"otherNoGPUClasses": "odd"}, False),
        ({"of": "odd"}, {"gpuDrivers": "odd.example.com", "unknownClasses": "free"}, True),
        # a class that became another since the device was allocated: the device tells
        ({"of": "gpu", "driver": "nic.example.com"}, LISTED, False),
        # a class of which nobody knows the driver, and that an administrator has judged all the same
        ({"of": "odd", "driver": "gpu.nvidia.com"}, {"otherNoGPUClasses": "odd"}, False),
        ({"of": "odd", "driver": "gpu.nvidia.com"}, {"unknownClasses": "free"}, False),
    ],
)
def test_a_device_counts_as_its_driver_and_its_class_do_at_admission(
    excess: Excesses, claimed: dict[str, Any], said: dict[str, str], leaves: bool
) -> None:
    excess.begins(holding("c", "p", **claimed), judged("p", "0"), settings=class_settings(**said))

    assert excess.asked_now() == (["p"] if leaves else [])


@pytest.mark.parametrize(("said", "leaves"), [({}, True), ({"unknownClasses": "free"}, False)])
def test_a_device_of_an_unknown_driver_in_place_of_a_gpu_is_too_much(
    excess: Excesses, said: dict[str, str], leaves: bool
) -> None:
    """Where these are denied no pod was judged for one. One of a known driver may be another's."""
    claims = holding("c", "p", of="odd"), holding("d", "q", of="example")
    excess.begins(*claims, judged("p"), judged("q"), settings=class_settings(**LISTED, **said))

    assert excess.asked_now() == (["p"] if leaves else [])
    notes = [each["note"] for each in excess.api.events]
    assert all("its claims hold devices of an unknown driver" in each for each in notes)
    assert len(notes) == leaves


def test_what_an_administrator_decides_later_makes_no_earlier_pod_leave(excess: Excesses) -> None:
    """Of drivers by `_settings`, and by the ConfigMap of device classes, as the API server dates it."""
    excess.begins(
        holding("c", "p", of="nic"), holding("d", "q", of="odd"), judged("p", "0"), judged("q", "0"),
        settings=class_settings(**LISTED, unknownClasses="free"),
    )  # fmt: skip
    assert excess.asked_now() == []
    later = class_settings(**LISTED)
    later["metadata"]["managedFields"] = [
        {"manager": "kubectl-patch", "time": iso(T0 + SECOND)},
        {"manager": "bursar-certificates", "time": iso(T0 + HOUR)},
    ]
    excess.town.change("configmaps", later)
    drivers = "drivers:\n  nic.example.com: {gpus: all}"
    excess.town.advance(MINUTE)
    excess.town.change("configmaps", budgets(_settings=drivers, team_a=RICH))

    assert excess.asked_now() == []
    for name, of in (("r", "nic"), ("s", "odd"), ("t", "nic")):
        excess.town.hear("pods", judged(name, "0", age_ms=-5 * MINUTE))
        excess.town.change(CLAIMS, holding(f"c-{name}", name, of=of))
    assert excess.asked_now() == ["r", "s", "t"]
    excess.town.advance(10 * MINUTE)
    excess.town.hear("deviceclasses", device_class("nic", "nic.example.com"), deleted=True)
    excess.town.change("configmaps", budgets(_settings=drivers.replace("all", "none"), team_a=RICH))
    assert excess.asked_now() == ["s"], "network cards are no GPUs any more"


def test_a_change_of_the_device_classes_frees_no_waiting_pod_unless_nobody_knows_what_was_before(
    excess: Excesses,
) -> None:
    """Each pod was created before the change, and its claim is swapped for one of an unknown driver after
    it. Of these `free` was judged while unknown drivers were free."""
    excess.begins(settings=class_settings(**LISTED, unknownClasses="free"))
    said = [
        ("free", HOUR, {"unknownClasses": "deny"}),
        ("before", 2 * HOUR, {"gpuDrivers": "new.example.com"}),
        ("restarted", 3 * HOUR, {"gpuDrivers": "newer.example.com"}),
    ]
    for name, at_ms, settings in said:
        excess.town.hear("pods", judged(name, "0", node="", age_ms=-(at_ms - 30 * MINUTE)))
        excess.town.advance(HOUR)
        later = class_settings(**LISTED, **settings)
        later["metadata"]["managedFields"] = [{"manager": "kubectl-patch", "time": iso(T0 + at_ms)}]
        excess.town.change("configmaps", later)
    excess.town.advance(HOUR)
    for name in ("free", "before"):
        excess.town.change(CLAIMS, holding(f"c-{name}", name, of="odd"))

    assert excess.asked_now() == ["before"]
    excess.town.restart()
    excess.town.tick()
    excess.takes_over()
    excess.town.change(CLAIMS, holding("c-restarted", "restarted", of="odd"))
    assert excess.asked_now() == []


def test_all_that_share_such_a_claim_leave_whatever_a_disruption_budget_says_but_those_judged_for_it(
    excess: Excesses,
) -> None:
    shared = holding("c", "p", "q", "r", devices=2)
    excess.begins(shared, judged("p"), judged("q"), judged("r", "2"))
    excess.api.refusals["q"] = (429, PDB_429)

    assert excess.asked_now() == ["p", "q"]
    assert [each["path"].split("/")[-1] for each in excess.api.deletions] == ["q"]


def test_where_one_of_them_may_not_be_evicted_none_is_until_a_later_try(excess: Excesses) -> None:
    excess.begins(holding("c", "p", "q", devices=2), judged("p"), judged("q"))
    excess.api.refusals["q"] = (403, {"message": "a webhook refuses"})

    assert excess.asked_now() == []
    assert excess.api.evictions == []
    excess.api.refusals.clear()
    assert excess.asked_now() == []
    excess.town.advance(WRITTEN_MS)
    assert excess.asked_now() == ["p", "q"]


def test_a_long_grace_period_is_shortened_and_a_short_one_is_the_pods_own(excess: Excesses) -> None:
    excess.begins(holding("c", "p", "q", "r", devices=2), *map(judged, ("p", "q", "r")))
    excess.api.refusals["q"] = (429, PDB_429)
    for name, seconds in (("p", 3_600), ("q", 3_600), ("r", 5)):
        raw = judged(name)
        raw["spec"]["terminationGracePeriodSeconds"] = seconds
        excess.town.change("pods", raw)

    assert excess.asked_now() == ["p", "q", "r"]
    options = {each["metadata"]["name"]: each["deleteOptions"] for each in excess.api.evictions}
    assert {name: each.get("gracePeriodSeconds") for name, each in options.items() if name != "q"} == {
        "p": 30,
        "r": None,
    }
    assert [each.get("gracePeriodSeconds") for each in excess.api.deletions] == [30]


def test_a_pod_that_is_deleted_with_a_long_grace_period_leaves_within_the_short_one(excess: Excesses) -> None:
    """Also one whose other containers have ended, and that holds its claim in one of the sidecar's name."""
    leaving = {"p": HOUR, "q": 29 * SECOND, "r": 2 * HOUR}
    claims = [holding(f"c-{name}", name, devices=2) for name in leaving]
    excess.begins(*claims, *map(judged, leaving))
    for name, left_ms in leaving.items():
        raw = judged(name)
        raw["metadata"] |= {"deletionTimestamp": iso(T0 + left_ms), "deletionGracePeriodSeconds": 86_400}
        excess.town.change("pods", raw)
    ended = judged("s")
    ended["spec"] |= {"containers": [*ended["spec"]["containers"], {"name": "bursar-sidecar"}]}
    ended["status"]["containerStatuses"] = [
        {"name": ended["spec"]["containers"][0]["name"], "state": {"terminated": {"finishedAt": iso(T0)}}}
    ]
    ended["spec"]["restartPolicy"] = "Never"
    excess.town.hear("pods", ended)
    excess.town.change(CLAIMS, holding("c-s", "s", devices=2))

    assert excess.asked_now() == ["p", "r", "s"]
    options = {each["metadata"]["name"]: each["deleteOptions"] for each in excess.api.evictions}
    assert {name: options[name].get("gracePeriodSeconds") for name in ("p", "r")} == {"p": 30, "r": 30}


@pytest.mark.parametrize("mode", ["meter", "observe"])
def test_nobody_leaves_where_nothing_is_enforced(excess: Excesses, mode: str) -> None:
    excess.begins(team_a=f"{RICH}\nmode: {mode}")
    excess.town.advance(HOUR)
    excess.town.hear("pods", judged("p", age_ms=-30 * MINUTE))
    excess.town.change(CLAIMS, holding("c", "p", devices=2))
    assert excess.asked_now() == []

    excess.town.change("configmaps", budgets(team_a=RICH))

    assert excess.asked_now() == [], "it was created before"


@pytest.mark.parametrize("mode", ["meter", "observe"])
def test_nobody_leaves_where_nothing_is_enforced_any_more(excess: Excesses, mode: str) -> None:
    excess.begins(judged("p"))
    excess.town.advance(HOUR)
    excess.town.hear(CLAIMS, holding("c", "p", devices=2))
    excess.town.change("configmaps", budgets(team_a=f"{RICH}\nmode: {mode}"))

    assert excess.asked_now() == []


def test_where_a_mode_has_just_changed_the_record_tells_that_a_pod_was_judged(excess: Excesses) -> None:
    """Of a pod with claims of no GPUs it is all that admission has written."""
    excess.begins(team_a=f"{RICH}\nmode: meter")
    excess.town.advance(HOUR)
    excess.town.change("configmaps", budgets(team_a=RICH))
    excess.town.hear("pods", judged("p", "0", age_ms=-HOUR - SECOND, labels={"bursar.dev/governed": ""}))
    excess.town.change(CLAIMS, holding("c", "p"))

    assert excess.asked_now() == ["p"]


def test_a_settler_that_takes_over_finds_it_too_and_a_waiting_pod_leaves_before_it_is_bound(
    excess: Excesses,
) -> None:
    excess.begins(judged("p", node=""))
    excess.town.change(CLAIMS, holding("c", "p", devices=2))
    excess.town.restart()
    excess.town.tick()
    excess.takes_over()

    assert excess.asked_now() == ["p"]


def test_only_the_newest_settler_evicts(excess: Excesses) -> None:
    excess.begins(holding("c", "p", devices=2), judged("p"))
    excess.town.resume()

    with pytest.raises(fencing.EpochOverError):
        excess.round.step()
    assert excess.asked() == []


def test_a_claim_that_serves_the_cards_of_a_pod_with_other_claims_was_judged_as_cards(
    excess: Excesses,
) -> None:
    serving_claim = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": []}}
    carded, other = judged("p", "0"), judged("q", "0")
    for raw in (carded, other):
        raw["status"] = raw.get("status", {}) | serving_claim
    excess.begins(holding("c", "p"), holding("d", "q"), carded, other)

    assert excess.asked_now() == ["q"]


def test_a_gang_that_is_too_small_without_such_a_pod_leaves_with_it(excess: Excesses) -> None:
    marks = {"bursar.dev/held": "budget", "bursar.dev/gang": "g", "bursar.dev/gang-size": "2"}
    members = [judged(name, annotations=marks) for name in ("p", "q")]
    excess.begins(holding("c", "p", devices=2), holding("d", "q"), *members)

    assert excess.asked_now() == ["p", "q"]
    notes = {each["regarding"]["name"]: each["note"] for each in excess.api.events}
    assert "the claims of pod p hold 2 GPUs" in notes["q"]
    assert "All 2 pods of gang g leave together." in notes["p"]
