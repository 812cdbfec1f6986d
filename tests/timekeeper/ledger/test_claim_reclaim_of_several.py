"""Pods over budget leave for a pod whose claims need several devices: all of one node, or none leaves."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.leaving import PDB_429
from tests.timekeeper.ledger.test_claim_reclaim import (
    CLAIMS,
    PODS,
    POOR,
    RICH,
    TOKEN,
    Reclaiming,
    free_claim,
    heir,
    held_claim,
    idle,
    leaves,
    user,
)
from tests.timekeeper.worlds import MINUTE, SECOND, T0, Json, Town

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"

OTHER_TOKEN = "f" * 32


@pytest.fixture
def world(town: Town, tmp_path: Path) -> Iterator[Reclaiming]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Reclaiming(town, api, url, tmp_path)


def debtors(*names: str) -> list[Json]:
    """Pods over budget, each with a claim on a device of its own."""
    claims = [held_claim(f"of-{name}", name, device=f"gpu-{place}") for place, name in enumerate(names)]
    return [*map(user, names), *claims]


def two_claims(name: str = "heir") -> list[Json]:
    """A waiting pod with two claims, each on one device."""
    waiting = heir(name)
    waiting["spec"]["resourceClaims"].append({"name": "d", "resourceClaimName": "other"})
    return [waiting, free_claim(f"of-{name}"), free_claim("other", token=OTHER_TOKEN)]


def two_requests(**second: Any) -> list[Json]:
    """A waiting pod with a claim of two requests, each for one device."""
    claim, other = free_claim("of-heir"), free_claim("x", **second)
    requests = claim["spec"]["devices"]["requests"]
    requests.append(other["spec"]["devices"]["requests"][0] | {"name": "r1"})
    return [heir(), claim]


def kept(world: Reclaiming) -> dict[str, tuple[str, str]]:
    """Device -> the claim that it is kept for, and the value of the taint."""
    return {
        each["spec"]["deviceSelector"]["device"]: (
            each["metadata"]["annotations"]["bursar.dev/heir"],
            each["spec"]["taint"]["value"],
        )
        for each in world.rules.values()
    }


def gives(world: Reclaiming, claim: str, *devices: str) -> None:
    """kube-scheduler gives the devices to the claim."""
    made = world.object(CLAIMS, claim)
    results = map(allocated, devices)
    held = device_claim(claim, *results, namespace=RICH, at_ms=world.town.clock(), pods=("uid-heir",))
    world.town.hear(CLAIMS, made | {"status": held["status"]})


@pytest.mark.parametrize("waiting", [[heir(), free_claim("of-heir", count=2)], two_requests()])
def test_pods_of_one_node_leave_for_a_claim_on_several_devices_and_all_are_kept_for_it(
    world: Reclaiming, waiting: Sequence[Json]
) -> None:
    world.start(*debtors("v", "w", "x"), *waiting, devices=3)
    assert world.turn(SECOND) == []
    assert set(kept(world).values()) == {(f"{RICH}/of-heir", TOKEN)}
    assert len(world.rules) == 2

    gone = world.turn(SECOND)
    assert len(gone) == 2
    for each in gone:
        world.goes(each, f"of-{each}")
    assert world.turn(20 * SECOND) == []
    gives(world, "of-heir", *kept(world))
    assert world.turn(2 * SECOND) == []

    assert world.rules == {}
    (note,) = (each["note"] for each in world.api.events if each["reason"] == "VictimsEvicted")
    assert "for 2 devices of this pod's claims. A taint keeps each for its claim meanwhile" in note


def test_each_of_several_claims_has_a_device_kept_and_no_taint_is_left_once_both_have_theirs(
    world: Reclaiming,
) -> None:
    world.start(*debtors("v", "w"), *two_claims(), devices=2)
    assert sorted(world.turn(2 * SECOND)) == ["v", "w"]
    assert sorted(kept(world).values()) == [(f"{RICH}/of-heir", TOKEN), (f"{RICH}/other", OTHER_TOKEN)]
    for each in ("v", "w"):
        world.goes(each, f"of-{each}")

    of = {claim.split("/")[1]: device for device, (claim, _) in kept(world).items()}
    gives(world, "of-heir", of["of-heir"])
    world.turn(2 * SECOND)
    assert len(world.rules) == 2, "one of two has its device"
    gives(world, "other", of["other"])
    world.turn(2 * SECOND)
    assert world.rules == {}


def test_each_device_is_kept_for_a_request_whose_terms_it_met(world: Reclaiming) -> None:
    """The first claim names none, and the device that met the second's terms would do for it, too."""
    terms, others = (
        [{"cel": {"expression": f"device.attributes['x'].{name}"}} for name in names]
        for names in (("big",), ("old", "slow"))
    )
    objects, waiting = debtors("v", "w"), two_claims()
    for claim, met in ((objects[2], others), (objects[3], terms), (waiting[2], terms)):
        claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = met
    world.start(*objects, *waiting, devices=2)

    assert sorted(world.turn(2 * SECOND)) == ["v", "w"]
    assert {device: claim for device, (claim, _) in kept(world).items()} == {
        "gpu-1": f"{RICH}/other",
        "gpu-0": f"{RICH}/of-heir",
    }


def published(*names: str, **more: Json) -> Json:
    """Devices, each with what is said of it here; each has a UUID of its own, and a model."""
    raw = device_slice(*names)
    for each in raw["spec"]["devices"]:
        name = each["name"].replace("-", "_")
        attributes = {**each["attributes"], "uuid": {"string": each["name"]}}
        each |= {"attributes": attributes} | more.get(name, {})
    return raw


READS_MODEL = 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "A100"'
READS_UUID = 'device.attributes["gpu.example.com"].uuid != "gpu-9"'


def one_is_free(world: Reclaiming, expression: str = READS_MODEL, **more: Json) -> None:
    """A node with three devices, of which one is free, and an heir that needs two."""
    world.classes = {"gpu": [expression]}
    world.start(*debtors("v", "w"), heir(), free_claim("of-heir", count=2), devices=3)
    world.town.hear("resourceslices", published("gpu-0", "gpu-1", "gpu-2", **more))


def test_a_device_that_is_free_is_kept_beside_one_that_comes_free_and_only_one_pod_leaves(
    world: Reclaiming,
) -> None:
    one_is_free(world)
    assert len(world.turn(3 * SECOND)) == 1
    assert len(kept(world)) == 2
    order = [each["spec"]["deviceSelector"]["device"] for each in world.written]
    assert order.index("gpu-2") == 1, "a settler that finds this rule alone would take the pods for evicted"
    assert world.turn(20 * SECOND) == []


@pytest.mark.parametrize(
    ("expression", "more"),
    [
        (READS_UUID, {}),
        (READS_MODEL, {"gpu_2": {"attributes": {"model": {"string": "H100"}}}}),
        (READS_MODEL, {"gpu_2": {"allowMultipleAllocations": True}}),
        ("", {}),
    ],
)
def test_nobody_leaves_where_it_is_not_known_whether_a_free_device_would_do(
    world: Reclaiming, expression: str, more: Json
) -> None:
    one_is_free(world, expression, **more)
    if not expression:
        world.classes = {}

    assert world.turn(20 * SECOND) == []
    assert world.written == []


def test_nobody_leaves_where_more_is_free_than_is_needed(world: Reclaiming) -> None:
    """Two devices are free of a class of which the heir needs one: it does not wait for devices alone."""
    world.classes = {"gpu": [READS_MODEL], "x": [READS_MODEL]}
    held = held_claim("of-w", "w", device="gpu-1")
    held["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "x"
    waiting = two_requests(deviceClassName="x")
    world.start(*debtors("v"), user("w"), held, *waiting, devices=4)
    other = {"attributes": {"model": {"string": "H100"}}}
    world.town.hear("resourceslices", published("gpu-0", "gpu-1", "gpu-2", "gpu-3", gpu_1=other))

    assert world.turn(10 * SECOND) == []
    assert world.written == []


def test_a_free_device_that_a_taint_keeps_claims_off_does_not_count(world: Reclaiming) -> None:
    """By a rule of somebody else, or by its driver."""
    taint = {"key": "example.com/repair", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"pool": "n1", "device": "gpu-2"}, "taint": taint}
    world.rules["repair"] = {"metadata": {"name": "repair"}, "spec": spec}
    one_is_free(world, READS_UUID)
    assert len(world.turn(3 * SECOND)) == 2
    del world.rules["repair"]
    assert sorted(kept(world)) == ["gpu-0", "gpu-1"]


def test_a_free_device_that_its_driver_taints_does_not_count(world: Reclaiming) -> None:
    one_is_free(world, READS_UUID, gpu_2={"taints": [{"key": "broken", "effect": "NoSchedule"}]})

    assert len(world.turn(3 * SECOND)) == 2


def test_a_free_device_that_another_claim_gets_meanwhile_puts_the_eviction_off(world: Reclaiming) -> None:
    one_is_free(world)
    world.turn(SECOND)
    assert len(kept(world)) == 2
    world.town.hear(PODS, user("y", RICH))
    world.town.hear(CLAIMS, held_claim("of-y", "y", device="gpu-2", namespace=RICH))

    assert world.turn(SECOND) == []
    assert world.rules == {}


def on_node(claim: Json, name: str) -> Json:
    """The same on another node."""
    for each in claim["status"]["allocation"]["devices"]["results"]:
        each["pool"] = name
    terms = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    terms[0]["matchFields"][0]["values"] = [name]
    return claim


@pytest.mark.parametrize(
    "case", ["two nodes", "one is free", "one comes free", "in budget", "other terms", "nine", "has one"]
)
def test_nobody_leaves_for_fewer_devices_of_one_node_than_the_heir_needs(
    world: Reclaiming, case: str
) -> None:
    """Nor where a device of the node comes free anyway, or is free and nothing is known of its class."""
    waiting = [heir(), free_claim("of-heir", count=9 if case == "nine" else 2)]
    names = [f"v{place}" for place in range(10)] if case == "nine" else ["v", "w"]
    objects = debtors(*names)
    devices = len(names)
    if case == "two nodes":
        objects[3] = on_node(objects[3], "n2")
        devices = 1
    elif case == "one is free":
        devices = 3
    elif case == "one comes free":
        objects += [user("y", RICH), held_claim("of-y", "y", device="gpu-2", namespace=RICH)]
        devices = 3
    elif case == "in budget":
        objects[1], objects[3] = user("w", RICH), held_claim("of-w", "w", device="gpu-1", namespace=RICH)
    elif case == "other terms":
        waiting = two_requests(selectors=[{"cel": {"expression": "true"}}])
    elif case == "has one":
        waiting = two_claims()
        waiting[2] = held_claim("other", "heir", device="gpu-2", namespace=RICH)
    world.start(*objects, *waiting, devices=devices)
    if case == "two nodes":
        other = device_slice("gpu-1", node="n2")
        world.town.hear("resourceslices", other)
    elif case == "one comes free":
        leaves(world, "y")

    assert world.turn(20 * SECOND) == []
    assert world.written == []


def test_one_pod_with_two_devices_leaves_rather_than_two(world: Reclaiming) -> None:
    both = device_claim(
        "both", allocated("gpu-2"), allocated("gpu-3"), namespace=POOR, at_ms=T0, pods=("uid-b",)
    )
    objects = [user("b", priority=5, claim="both"), both]
    world.start(*debtors("v", "w"), *objects, heir(), free_claim("of-heir", count=2), devices=4)

    assert world.turn(3 * SECOND) == ["b"]
    assert sorted(kept(world)) == ["gpu-2", "gpu-3"]


def test_no_pod_leaves_whose_device_is_superfluous(world: Reclaiming) -> None:
    """Of three devices that are needed, one by one pod, and three by four: the four make the one superfluous,
    and three single ones are cheaper than both."""
    names = [f"s{place}" for place in range(4)]
    pods = tuple(f"uid-{name}" for name in names)
    shared = device_claim(
        "shared", *map(allocated, ("gpu-1", "gpu-2", "gpu-3")), namespace=POOR, at_ms=T0, pods=pods
    )
    sharers = [user(name, claim="shared") for name in names]
    world.start(*debtors("v"), *sharers, shared, heir(), free_claim("of-heir", count=3), devices=4)

    assert sorted(world.turn(3 * SECOND)) == names
    assert sorted(kept(world)) == ["gpu-1", "gpu-2", "gpu-3"]


def test_where_a_disruption_budget_keeps_one_of_the_pods_none_leaves_and_nothing_is_kept(
    world: Reclaiming,
) -> None:
    world.start(*debtors("v", "w"), heir(), free_claim("of-heir", count=2), devices=2)
    world.api.refusals["w"] = (429, PDB_429)

    assert world.turn(30 * SECOND) == []
    assert world.written == []


def test_a_budget_of_one_of_two_namespaces_that_allows_fewer_evictions_keeps_all(world: Reclaiming) -> None:
    """The first of the pods is of another namespace, and its budget allows it."""
    other = idle(user("v", "team-c"))
    objects = debtors("v", "w", "x")
    objects[0], objects[3] = other, held_claim("of-v", "v", namespace="team-c")
    entries = {"team_c": "gpuHours: 100"}
    world.start(*objects, heir(), free_claim("of-heir", count=3), devices=3, entries=entries)
    selector = {"matchExpressions": [{"key": "bursar.dev/governed", "operator": "Exists"}]}
    world.api.budgets = [{"spec": {"selector": selector}, "status": {"disruptionsAllowed": 1}}]
    assert world.turn(10 * SECOND) == []

    world.api.budgets = [{"spec": {"selector": selector}, "status": {"disruptionsAllowed": 2}}]
    assert sorted(world.turn(80 * SECOND)) == ["v", "w", "x"]


def test_where_one_taint_cannot_be_written_the_others_go_and_nobody_leaves(world: Reclaiming) -> None:
    world.start(*debtors("v", "w"), heir(), free_claim("of-heir", count=2), devices=2)
    answer = world.api.others

    def once(method: str, path: str, body: Json) -> tuple[int, Json] | None:
        is_second = method == "POST" and "devicetaintrules" in path and len(world.written) == 1
        return (503, {"message": "overloaded"}) if is_second else answer(method, path, body)

    world.api.others = once
    assert world.turn(5 * SECOND) == []
    assert (len(world.written), world.rules) == (1, {})


def test_devices_that_are_not_all_as_they_were_a_second_later_are_let_go(world: Reclaiming) -> None:
    world.start(*debtors("v", "w"), heir(), free_claim("of-heir", count=2), devices=2)
    world.turn(SECOND)
    assert len(world.rules) == 2
    leaves(world, "w")

    assert world.turn(5 * SECOND) == []
    assert world.rules == {}


def test_a_settler_that_takes_over_keeps_all_devices_of_an_heir_and_not_longer_than_said(
    world: Reclaiming,
) -> None:
    world.start(*debtors("v", "w"), heir(), free_claim("of-heir", count=2), devices=2)
    assert sorted(world.turn(2 * SECOND)) == ["v", "w"]
    for each in ("v", "w"):
        leaves(world, each)
    world.restart()
    assert world.turn(20 * SECOND) == []
    assert len(world.rules) == 2

    world.goes("v", "of-v")
    world.goes("w", "of-w")
    assert world.turn(MINUTE) == []
    assert world.rules == {}


def test_a_settler_that_takes_over_lets_go_of_devices_of_which_one_is_held_by_a_pod_that_stays(
    world: Reclaiming,
) -> None:
    world.start(*debtors("v", "w"), heir(), free_claim("of-heir", count=2), devices=2)
    world.turn(SECOND)
    before = set(world.rules)
    leaves(world, "v")
    world.restart()
    world.turn(SECOND)

    assert before.isdisjoint(world.rules)


def test_what_was_kept_without_use_is_let_go_in_time(world: Reclaiming) -> None:
    world.start(*debtors("v", "w"), *two_claims(), devices=2)
    assert len(world.turn(2 * SECOND)) == 2
    for each in ("v", "w"):
        world.goes(each, f"of-{each}")
    assert world.turn(58 * SECOND) == []
    assert len(world.rules) == 2
    world.turn(4 * SECOND)
    assert world.rules == {}
    assert [each.reason for each in world.town.recorded if each.name == "heir"] == [
        "WaitsForDevices",
        "VictimsEvicted",
        "EvictionsUnused",
    ]
