"""Claims on devices are charged by their allocation, from when it is made until it is cleared."""

from typing import Any

import pytest

from tests.timekeeper.claims import DRIVER, EXTENDED, allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_held_claims import device_class
from tests.timekeeper.ledger.test_held_claims import settings as class_settings
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.core.findings import of_doubts
from timekeeper.metrics import CLAIMED_GPUS
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.store.engine.upgrade import snapshot

SLICE = ("resourceslices", device_slice("gpu-0", "gpu-1"))
CLAIMS, SLICES = "resourceclaims", "resourceslices"
BEGAN = T0 + MINUTE


def held(*devices: Json, at_ms: int | None = BEGAN, pods: tuple[str, ...] = ("uid-p",), **more: Any) -> Json:
    """The claim with an allocation."""
    return device_claim("c", *(devices or (allocated(),)), at_ms=at_ms, pods=pods, **more)


def pod(name: str = "p", ended_ms: int | None = None, on: str = "n1", grace_s: int = 30) -> Json:
    """A pod that uses the claim, and requests nothing else."""
    started = T0 + MINUTE if on else None
    body = gpu_pod(name, node=on, started_ms=started, ended_ms=ended_ms, grace_s=grace_s)
    body["metadata"]["annotations"] = {}
    body["metadata"]["labels"] = {"app": "x"}
    body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    body["spec"]["containers"][0]["resources"] = {}
    return body


def served(name: str = "p", claim: str = "c", on: str = "n1", limits: Json | None = None) -> Json:
    """A pod whose extended resource a claim serves; kube-scheduler writes that into its status."""
    body = gpu_pod(name, node=on)
    body["metadata"]["annotations"] = {}
    body["spec"]["containers"][0]["resources"] = {"limits": limits or {"nvidia.com/gpu": "1"}}
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r0"}
    body["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": claim, "requestMappings": [mapping]}
    return body


@pytest.fixture
def holding(town: Town) -> Town:
    """A claim was allocated a minute after the beginning."""
    town.begin(SLICE, (CLAIMS, device_claim()), ("pods", pod(on="")))
    town.clock.turn(MINUTE)
    town.hear("pods", pod())
    town.change(CLAIMS, held())
    return town


def rows(town: Town) -> list[Json]:
    """The sessions, in the order of their beginnings."""
    found = town.get("/v1/sessions").get_json()["sessions"]
    return sorted(found, key=lambda each: (each["bound"], each["uid"]))


def spans(town: Town) -> list[tuple[int, int | None, int]]:
    """Beginning, end and rate of each session of a claim."""
    return [
        (each["bound"], each["ended"], each["rateMilli"]) for each in rows(town) if each["kind"] == "claim"
    ]


def sound(town: Town) -> bool:
    """Whether an audit finds the ledger as its evidence says."""
    findings: list[Finding] = []
    with snapshot(town.store) as connection:
        audit(connection, town.clock(), findings.append)
    return findings == []


def test_a_claim_is_charged_from_its_allocation_to_its_release(holding: Town) -> None:
    holding.clock.turn(10 * MINUTE)
    holding.change(CLAIMS, device_claim())

    assert holding.charged() == 10 * MINUTE * GPU
    assert holding.postings(f"claim-c:claim:{BEGAN}") == [(BEGAN, BEGAN + 10 * MINUTE, GPU, "settled")]
    assert sound(holding)


def test_the_balance_falls_while_a_claim_is_held(town: Town) -> None:
    town.begin(SLICE, (CLAIMS, device_claim()), ("configmaps", budgets(team_a="gpuHours: 1")))
    town.change(CLAIMS, held(at_ms=T0))

    town.clock.turn(30 * MINUTE)
    town.quiet(CLAIMS)
    town.tick()

    assert town.budget()["remaining"] == 30 * MINUTE * GPU
    assert town.charged() == 30 * MINUTE * GPU
    town.clock.turn(31 * MINUTE)
    town.quiet(CLAIMS)
    town.tick()
    assert town.standing() == "OVER_BUDGET"


def test_a_cap_counts_a_claim_from_the_tick_that_sees_it_until_the_one_that_sees_its_end(town: Town) -> None:
    def says() -> int | None:
        found: int | None = town.get("/v1/standings").get_json()["namespaces"]["team-a"].get("heldByClaims")
        return found

    entry = ("configmaps", budgets(team_a="gpuHours: 1\nmaxGPUs: 4"))
    town.begin(SLICE, (CLAIMS, device_claim()), entry)
    assert says() is None

    town.change(CLAIMS, held(allocated(), allocated("gpu-1"), at_ms=T0))
    assert says() == 2_000
    town.restart()
    assert says() == 2_000
    town.change(CLAIMS, device_claim())
    assert says() is None

    town.change(CLAIMS, held(allocated(adminAccess=True), at_ms=T0 + MINUTE))
    assert says() is None


def test_an_audit_knows_until_when_claims_were_known_where_their_watch_is_silent_for_long(town: Town) -> None:
    town.begin(SLICE, (CLAIMS, device_claim()))
    town.change(CLAIMS, held(at_ms=T0))
    town.clock.turn(HOUR)
    town.quiet(CLAIMS)
    town.tick()

    town.clock.turn(48 * HOUR)
    town.tick()

    assert town.charged() == HOUR * GPU
    assert [each[3] for each in town.postings(f"claim-c:claim:{T0}")] == ["settled"]
    assert sound(town)


def test_a_metric_says_how_many_gpus_claims_hold_by_driver(town: Town) -> None:
    def says() -> dict[str, float]:
        town.tick()
        found = {each.labels["driver"]: each.value for each in next(iter(CLAIMED_GPUS.collect())).samples}
        return {driver: value for driver, value in found.items() if value}

    CLAIMED_GPUS.clear()  # of drivers of other tests' settlers
    town.begin(SLICE, (CLAIMS, device_claim()))
    town.change(CLAIMS, held(allocated(), allocated("gpu-1"), at_ms=T0))
    town.change(CLAIMS, held(allocated(), allocated("gpu-1"), at_ms=T0, pods=("uid-p", "uid-q")))
    assert says() == {DRIVER: 2.0}
    town.restart()
    assert says() == {DRIVER: 2.0}
    town.change(CLAIMS, device_claim())
    assert says() == {}

    town.change(CLAIMS, held(allocated(adminAccess=True), at_ms=T0 + MINUTE))
    assert says() == {}


def test_the_metric_keeps_a_driver_whose_rule_is_gone_while_its_claims_pay(town: Town) -> None:
    rule = "drivers:\n  odd.example.com: {gpus: all}"
    odd = ("resourceslices", device_slice("gpu-0", driver="odd.example.com"))
    town.begin(odd, (CLAIMS, device_claim()), ("configmaps", budgets(_settings=rule)))
    town.change(CLAIMS, held(allocated(driver="odd.example.com"), at_ms=T0))
    town.tick()
    CLAIMED_GPUS.labels("odd.example.com").set(0)

    town.change("configmaps", budgets())
    town.tick()

    assert CLAIMED_GPUS.labels("odd.example.com")._value.get() == 1


def test_a_session_shows_the_claim_its_devices_and_its_pods(holding: Town) -> None:
    shown = rows(holding)[0]

    assert (shown["kind"], shown["pod"], shown["node"], shown["models"]) == ("claim", "c", "n1", "A100")
    assert shown["devices"] == [
        {
            **{"driver": DRIVER, "pool": "n1", "device": "gpu-0", "deviceClass": "gpu"},
            **{"share": "", "milli": 1000, "admin": False},
        }
    ]
    assert (shown["consumers"], shown["requestedMilli"], shown["requestedMib"]) == (
        ["uid-p"],
        1000,
        80 * 1024,
    )
    assert shown["admittedInBudget"] is None


def test_a_claim_from_a_template_has_owner_and_labels_of_its_pod(town: Town) -> None:
    body = pod()
    body["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "controller": True}]
    town.begin(SLICE, (CLAIMS, device_claim()), ("pods", body))
    town.change(CLAIMS, held(owner="p"))

    assert [(each["owner"], each["labels"]) for each in rows(town)] == [("Job/j", {"app": "x"})]


def test_eight_sharers_pay_once(holding: Town) -> None:
    for number in range(8):
        holding.change(CLAIMS, held(pods=tuple(f"u{each}" for each in range(number + 1))))
    holding.clock.turn(MINUTE)
    holding.change(CLAIMS, device_claim())

    assert holding.charged() == MINUTE * GPU


def test_an_allocation_reserved_for_no_pod_is_charged_on_and_reported(holding: Town) -> None:
    holding.change(CLAIMS, held(pods=()))
    holding.clock.turn(HOUR)
    holding.quiet(CLAIMS)
    holding.tick()

    found = holding.get("/v1/doubts").get_json()["deviceClaims"]
    assert (found["orphans"], found["named"]) == (1, [{"namespace": "team-a", "claim": "c"}])
    assert holding.charged() == HOUR * GPU
    holding.change(CLAIMS, held(pods=()), deleted=True)
    holding.advance(SECOND)
    assert holding.get("/v1/doubts").get_json()["deviceClaims"]["orphans"] == 0
    assert spans(holding) == [(BEGAN, BEGAN + HOUR, GPU)]


def test_a_claim_deleted_in_use_is_charged_until_its_last_pod_has_ended(holding: Town) -> None:
    holding.hear("pods", pod("q"))
    holding.change(CLAIMS, held(pods=("uid-p", "uid-q")))
    holding.clock.turn(MINUTE)
    holding.change(CLAIMS, held(pods=("uid-p", "uid-q")), deleted=True)
    holding.clock.turn(MINUTE)
    holding.change("pods", pod(ended_ms=holding.clock()))
    holding.clock.turn(MINUTE)
    holding.quiet(CLAIMS)
    holding.tick()
    assert spans(holding) == [(BEGAN, None, GPU)]

    holding.change("pods", pod("q", ended_ms=holding.clock()))

    assert spans(holding) == [(BEGAN, BEGAN + 3 * MINUTE, GPU)]
    assert holding.charged() == 3 * MINUTE * GPU
    assert sound(holding)


def test_after_it_a_pod_removed_by_force_uses_the_device_through_its_grace_period(holding: Town) -> None:
    holding.change(CLAIMS, held(), deleted=True)
    holding.clock.turn(MINUTE)
    holding.change("pods", pod(), deleted=True)
    assert spans(holding) == [(BEGAN, None, GPU)]

    holding.clock.turn(HOUR)
    holding.tick()

    assert holding.charged() == (MINUTE + 30 * SECOND) * GPU
    assert sound(holding)


def test_a_claim_deleted_while_its_pod_waits_ends_with_it(town: Town) -> None:
    """So kube-scheduler deletes the claim of an extended resource whose pod it could not bind."""
    town.begin(SLICE, (CLAIMS, device_claim()), ("pods", pod(on="")))
    town.clock.turn(MINUTE)
    town.change(CLAIMS, held())
    town.clock.turn(SECOND)
    town.change(CLAIMS, held(), deleted=True)

    assert spans(town) == [(BEGAN, BEGAN + SECOND, GPU)]


def test_a_claim_deleted_in_use_is_known_to_the_next_settler(holding: Town) -> None:
    holding.hear("pods", pod("q"))
    holding.change(CLAIMS, held(pods=("uid-q",)))
    holding.change(CLAIMS, held(pods=("uid-q",)), deleted=True)
    holding.clock.turn(MINUTE)
    holding.hear("pods", pod(ended_ms=holding.clock()))
    again(holding)
    assert spans(holding) == [(BEGAN, None, GPU)]

    holding.change("pods", pod("q", ended_ms=holding.clock()))

    assert spans(holding) == [(BEGAN, BEGAN + MINUTE, GPU)]


def again(holding: Town) -> None:
    """Another settler, which receives all lists."""
    holding.start_anew()
    holding.hear_all(CLAIMS)
    holding.list_all()
    holding.tick()


def test_a_restart_changes_nothing_of_a_claim_that_is_held(holding: Town) -> None:
    holding.clock.turn(MINUTE)
    again(holding)
    holding.clock.turn(MINUTE)
    holding.change(CLAIMS, device_claim())

    assert spans(holding) == [(BEGAN, BEGAN + 2 * MINUTE, GPU)]
    assert sound(holding)


def test_a_claim_allocated_in_a_gap_began_by_its_own_time(town: Town) -> None:
    town.begin(SLICE, (CLAIMS, device_claim()))
    town.clock.turn(10 * MINUTE)
    town.hear(CLAIMS, held(), unheard=True)

    again(town)

    assert spans(town) == [(BEGAN, None, GPU)]


def test_one_that_was_allocated_before_the_ledger_began_is_charged_from_then_on(town: Town) -> None:
    town.clock.turn(HOUR)
    town.begin(SLICE, (CLAIMS, held()))

    assert spans(town) == [(T0 + HOUR, None, GPU)]


def test_an_end_in_a_gap_is_the_earliest_that_is_proved(holding: Town) -> None:
    holding.clock.turn(10 * MINUTE)
    holding.quiet(CLAIMS)
    holding.tick()
    holding.clock.turn(10 * MINUTE)
    holding.hear(CLAIMS, device_claim(), unheard=True)

    again(holding)

    assert spans(holding) == [(BEGAN, BEGAN + 10 * MINUTE, GPU)]


def test_it_is_no_earlier_than_the_end_of_a_pod_that_used_it(holding: Town) -> None:
    holding.hear("pods", pod(ended_ms=BEGAN + 5 * MINUTE), unheard=True)
    holding.hear(CLAIMS, device_claim(), unheard=True)
    holding.clock.turn(10 * MINUTE)

    again(holding)

    assert spans(holding) == [(BEGAN, BEGAN + 5 * MINUTE, GPU)]


def test_a_claim_that_is_gone_after_a_gap_ended_with_its_pods(holding: Town) -> None:
    holding.hear("pods", pod(ended_ms=BEGAN + 5 * MINUTE), unheard=True)
    holding.hear(CLAIMS, held(), deleted=True, unheard=True)
    holding.clock.turn(10 * MINUTE)

    again(holding)

    assert spans(holding) == [(BEGAN, BEGAN + 5 * MINUTE, GPU)]


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
def test_a_claim_allocated_anew_between_two_lists_has_two_sessions(holding: Town, device: str) -> None:
    holding.clock.turn(10 * MINUTE)
    anew = held(allocated(device), at_ms=BEGAN + 8 * MINUTE)
    holding.hear(CLAIMS, anew, unheard=True)

    holding.hear_all(CLAIMS)
    holding.tick()

    assert spans(holding) == [(BEGAN, BEGAN, GPU), (BEGAN + 8 * MINUTE, None, GPU)]


def test_one_that_is_allocated_twice_in_a_second_has_two_sessions(holding: Town) -> None:
    for _ in range(2):
        holding.clock.turn(100)
        holding.hear(CLAIMS, device_claim())
        holding.clock.turn(100)
        holding.hear(CLAIMS, held())
    holding.tick()
    again(holding)

    ends = [BEGAN + 100, BEGAN + 300, None]
    assert [end for _, end, _ in spans(holding)] == ends
    assert [begin for begin, _, _ in spans(holding)] == [BEGAN, BEGAN + 200, BEGAN + 400]


def test_the_next_settler_knows_an_earlier_session_of_the_same_second(holding: Town) -> None:
    holding.clock.turn(100)
    holding.change(CLAIMS, device_claim())
    holding.clock.turn(100)
    holding.hear(CLAIMS, held(), unheard=True)

    again(holding)

    assert spans(holding) == [(BEGAN, BEGAN + 100, GPU), (BEGAN + 200, None, GPU)]
    assert rows(holding)[1]["uid"] == f"claim-c:claim:{BEGAN + 1}"


def test_without_its_own_time_an_allocation_began_when_it_was_seen(town: Town) -> None:
    town.begin(SLICE, (CLAIMS, device_claim()))
    town.clock.turn(MINUTE + 300)
    town.change(CLAIMS, held(at_ms=None))
    again(town)

    assert spans(town) == [(BEGAN + 300, None, GPU)]


@pytest.mark.parametrize("at_ms", [T0 - HOUR, T0 + 2 * HOUR])
def test_a_time_that_cannot_be_is_not_believed(town: Town, at_ms: int) -> None:
    town.begin(SLICE, (CLAIMS, device_claim()))
    town.clock.turn(MINUTE)
    town.change(CLAIMS, held(at_ms=at_ms))

    assert spans(town) == [(BEGAN, None, GPU)]


def test_a_slice_that_goes_or_changes_later_changes_no_rate(holding: Town) -> None:
    other = device_slice("gpu-0", model="H100")
    holding.change("configmaps", budgets("bursar-settings", _settings="weights: {H100: 4}"))
    holding.change(SLICES, other)
    holding.change(SLICES, other, deleted=True)
    again(holding)

    assert spans(holding) == [(BEGAN, None, GPU)]


def test_a_claim_waits_for_the_slice_that_describes_its_device(town: Town) -> None:
    town.begin((CLAIMS, device_claim()))
    town.clock.turn(MINUTE)
    town.change(CLAIMS, held())
    assert spans(town) == []

    town.clock.turn(SECOND)
    town.change(SLICES, device_slice("gpu-0", allowMultipleAllocations=False, capacity={}))

    assert spans(town) == [(BEGAN, None, GPU)]
    assert rows(town)[0]["doubt"] is None


def test_without_a_slice_it_counts_as_a_whole_device_with_a_doubt(town: Town) -> None:
    town.begin((CLAIMS, device_claim()))
    town.clock.turn(MINUTE)
    town.change(CLAIMS, held())
    town.clock.turn(6 * SECOND)
    town.tick()

    assert spans(town) == [(BEGAN, None, GPU)]
    assert "no ResourceSlice has its device" in rows(town)[0]["doubt"]


def test_devices_of_a_driver_without_a_rule_are_reported_and_charged_once_there_is_one(town: Town) -> None:
    odd = device_slice("d0", driver="odd.example.com")
    town.begin((SLICES, odd), (CLAIMS, device_claim()))
    town.change(CLAIMS, held(allocated("d0", driver="odd.example.com"), at_ms=T0))
    town.advance(SECOND)
    found = town.get("/v1/doubts").get_json()["deviceClaims"]
    assert found["unknownDrivers"] == [{"driver": "odd.example.com", "claims": 1}]
    assert spans(town) == []

    town.clock.turn(MINUTE)
    rule = "drivers: {odd.example.com: {gpus: all}}"
    town.change("configmaps", budgets("bursar-settings", _settings=rule))
    town.tick()

    assert spans(town) == [(T0 + MINUTE + SECOND, None, GPU)]
    town.advance(SECOND)
    assert town.get("/v1/doubts").get_json()["deviceClaims"]["unknownDrivers"] == []


def test_a_driver_that_device_classes_list_is_charged_or_known_to_have_no_gpus(town: Town) -> None:
    """As admission governs pods by it: `gpuDrivers` and `noGPUDrivers` of the ConfigMap."""
    odd, nic = "odd.example.com", "nic.example.com"
    slices = [(SLICES, device_slice(f"{driver}-0", driver=driver)) for driver in (odd, nic)]
    lists = class_settings(gpuDrivers=odd, noGPUDrivers=nic)
    town.begin(*slices, ("configmaps", lists), (CLAIMS, device_claim()))
    town.change(CLAIMS, held(allocated(f"{odd}-0", driver=odd), allocated(f"{nic}-0", driver=nic), at_ms=T0))
    town.advance(SECOND)

    assert spans(town) == [(T0, None, GPU)]
    assert town.get("/v1/doubts").get_json()["deviceClaims"]["unknownDrivers"] == []

    town.change("configmaps", class_settings(gpuDrivers=nic, noGPUDrivers=odd))
    town.change(CLAIMS, device_claim())
    town.clock.turn(MINUTE)
    town.change(CLAIMS, held(allocated(f"{odd}-0", driver=odd), at_ms=T0 + MINUTE))

    assert [end for _, end, _ in spans(town)] == [T0 + SECOND], "neither charges of the other list now"


def test_the_settler_names_what_an_administrators_comparisons_leave_out_and_admission_counts(
    town: Town,
) -> None:
    rule = "drivers: {gpu.example.com: {gpus: [model = H100]}}"
    entries = ("configmaps", budgets("bursar-settings", _settings=rule))
    town.begin(SLICE, ("deviceclasses", device_class("mixed", DRIVER)), entries)
    town.advance(MINUTE)

    found = town.get("/v1/findings").get_json()["findings"]

    assert [each["sentence"] for each in found if each["code"] == "left-out-devices"] == [
        "2 devices of gpu.example.com are left out by its rule in drivers of _settings, and are charged"
        " nothing; admission counts each claim on mixed all the same, for a class tells no device"
    ]


def test_admin_access_has_a_session_that_costs_nothing(town: Town) -> None:
    town.begin(SLICE, (CLAIMS, device_claim()))
    town.change(CLAIMS, held(allocated(adminAccess=True), at_ms=T0))
    town.clock.turn(HOUR)
    town.change(CLAIMS, device_claim())

    assert spans(town) == [(T0, T0 + HOUR, 0)]
    assert town.charged() == 0


def test_a_device_that_is_no_gpu_is_not_charged(town: Town) -> None:
    rule = "drivers: {gpu.example.com: {gpus: none}}"
    town.begin(SLICE, (CLAIMS, device_claim()), ("configmaps", budgets("bursar-settings", _settings=rule)))
    town.change(CLAIMS, held())

    assert spans(town) == []


def test_pods_with_claims_are_not_counted_as_uncharged_where_claims_are_followed(holding: Town) -> None:
    assert holding.get("/v1/doubts").get_json()["claims"] == []


@pytest.fixture
def metering(town: Town) -> Town:
    """A ledger alone, in which pods pay by their spec."""
    meter = ("configmaps", budgets("bursar-settings", _settings="mode: meter"))
    town.begin(SLICE, (CLAIMS, device_claim()), meter, ("nodes", node()))
    town.clock.turn(MINUTE)
    return town


def kinds(town: Town) -> list[str]:
    return [each["kind"] for each in rows(town)]


def bound(*, first: str) -> list[tuple[str, Json]]:
    """The allocation of a claim for a pod's extended resource, and the pod's Binding, in either order."""
    steps = [(CLAIMS, held(annotations=EXTENDED, owner="p")), ("pods", served())]
    return steps if first == CLAIMS else steps[::-1]


@pytest.mark.parametrize("first", [CLAIMS, "pods"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_pod_whose_extended_resource_a_claim_serves_pays_once(
    metering: Town, first: str, apart: bool
) -> None:
    metering.change("pods", served(on=""))
    for source, raw in bound(first=first):
        metering.hear(source, raw)
        if apart:
            metering.tick()
    metering.tick()
    assert kinds(metering) == ["claim"]
    metering.clock.turn(HOUR)
    ended = served() | {"status": {**served()["status"], "phase": "Succeeded"}}
    metering.hear(CLAIMS, device_claim())
    metering.hear("pods", ended)
    metering.tick()
    again(metering)
    metering.change("pods", ended, deleted=True)
    metering.advance(HOUR)

    assert kinds(metering) == ["claim"]
    assert metering.charged() == HOUR * GPU


def test_a_pod_that_names_a_claim_and_was_bound_without_it_pays_by_its_cards(metering: Town) -> None:
    metering.hear("pods", served())
    metering.clock.turn(4 * SECOND)
    metering.quiet(CLAIMS)
    metering.tick()
    assert kinds(metering) == []

    metering.clock.turn(2 * SECOND)
    metering.quiet(CLAIMS)
    metering.tick()

    assert kinds(metering) == ["pod"]


def test_where_claims_are_not_followed_a_pod_pays_by_its_cards(town: Town) -> None:
    meter = ("configmaps", budgets("bursar-settings", _settings="mode: meter"))
    town.begin(meter, ("nodes", node()))
    town.change("pods", served())

    assert kinds(town) == ["pod"]


def test_what_a_claim_does_not_serve_is_charged_beside_it(metering: Town) -> None:
    limits = {"nvidia.com/gpu": "1", "amd.com/gpu": "2"}
    metering.hear(CLAIMS, held(annotations=EXTENDED, owner="p"))
    metering.change("pods", served(limits=limits))

    assert sorted((each["kind"], each["rateMilli"]) for each in rows(metering)) == [
        ("claim", 1000),
        ("pod", 2000),
    ]


def test_a_pod_that_pays_by_its_cards_already_does_not_pay_for_its_claim(metering: Town) -> None:
    metering.hear("pods", served())
    metering.clock.turn(6 * SECOND)
    metering.quiet(CLAIMS)
    metering.tick()
    metering.change(CLAIMS, held(annotations=EXTENDED, owner="p", at_ms=None))

    assert kinds(metering) == ["pod"]


def test_a_claim_that_only_says_that_it_serves_a_pod_is_charged_beside_the_pods_cards(metering: Town) -> None:
    """Who may create claims may give one the annotation of those that kube-scheduler makes."""
    body = served()
    del body["status"]["extendedResourceClaimStatus"]
    body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    metering.change("pods", body)
    metering.change(CLAIMS, held(annotations=EXTENDED, owner="p", at_ms=None))

    assert sorted(kinds(metering)) == ["claim", "pod"]


def test_reports_have_a_claim_by_its_name(holding: Town) -> None:
    holding.clock.turn(HOUR)
    holding.change(CLAIMS, device_claim())

    found = holding.get(f"/v1/usage?from={T0}&to={T0 + 2 * HOUR}&group=pod&format=csv").get_data(as_text=True)

    header, row = found.splitlines()[-2:]
    assert dict(zip(header.split(","), row.split(","), strict=True))["pod"] == "c"


def test_a_device_that_may_be_several_gpus_has_a_doubt_that_names_its_driver_and_the_field(
    town: Town,
) -> None:
    body = device_slice("four", "other")
    body["spec"]["sharedCounters"] = [{"name": "s", "counters": {"a": {"value": "4"}, "b": {"value": "4"}}}]
    for device, counter in zip(body["spec"]["devices"], "ab", strict=True):
        taken = {"counterSet": "s", "counters": {counter: {"value": "4"}}}
        device |= {"consumesCounters": [taken], "capacity": {"tpus": {"value": "4"}}}
    town.begin(("resourceslices", body), (CLAIMS, device_claim()))
    town.change(CLAIMS, held(allocated("four"), at_ms=T0))
    (doubt,) = town.get("/v1/doubts").get_json()["doubts"]
    assert (f"drivers.{DRIVER}.units" in doubt["doubt"], spans(town)) == (True, [(T0, None, GPU)])
    said = [finding.sentence for finding in of_doubts(town.get("/v1/doubts").get_json())]
    assert any(doubt["doubt"] in sentence for sentence in said)

    town.change("configmaps", budgets(_settings=f"drivers: {{{DRIVER}: {{units: capacity.tpus}}}}"))
    town.change(CLAIMS, device_claim())
    town.change(CLAIMS, held(allocated("four"), at_ms=T0 + MINUTE))
    assert spans(town)[-1][2] == 4 * GPU
