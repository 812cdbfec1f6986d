"""A device that Kubernetes frees while a pod that was deleted by force may use it: a taint keeps it from all
claims until the charge ends; where it was given out before, a finding names it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.timekeeper.claims import DRIVER, device_claim
from tests.timekeeper.clocks import iso
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.ledger.test_claim_reclaim import (
    CLAIMS,
    NODES,
    PODS,
    POOR,
    Reclaiming,
    free_claim,
    held_claim,
    roomy,
    user,
)
from tests.timekeeper.worlds import MINUTE, SECOND, Json, Town

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"


@pytest.fixture
def world(town: Town, tmp_path: Path) -> Iterator[Reclaiming]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Reclaiming(town, api, url, tmp_path)


def kubelet(world: Reclaiming, version: str) -> None:
    made = roomy()
    world.town.hear(NODES, made | {"status": made["status"] | {"nodeInfo": {"kubeletVersion": version}}})


def forced(world: Reclaiming) -> None:
    """The pod is deleted by force, and Kubernetes frees its claim at once."""
    last: Json = world.object(PODS, "v")
    asked = {"deletionTimestamp": iso(world.town.clock()), "deletionGracePeriodSeconds": 0}
    world.town.hear(PODS, last | {"metadata": last["metadata"] | asked}, deleted=True)
    world.town.hear(CLAIMS, device_claim("of-v", namespace=POOR))


def begin(world: Reclaiming, version: str = "v1.34.4", **entries: str) -> None:
    world.start(user("v", grace_s=300), held_claim("of-v", "v"), free_claim("next"), entries=entries)
    kubelet(world, version)


def found(world: Reclaiming) -> list[str]:
    """The sentences of the finding."""
    world.turn(MINUTE)
    every = world.town.get("/v1/findings").get_json()["findings"]
    return [finding["sentence"] for finding in every if finding["code"] == "devices-given-early"]


@pytest.mark.parametrize(("version", "lasts"), [("v1.34.4", 15 * SECOND), ("v1.30.9", 5 * MINUTE)])
def test_a_free_device_is_kept_from_all_claims_until_the_charge_ends(
    world: Reclaiming, version: str, lasts: int
) -> None:
    begin(world, version)
    forced(world)

    world.turn(2 * SECOND)

    (rule,) = world.rules.values()
    assert rule["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": "n1", "device": "gpu-0"}
    assert rule["spec"]["taint"]["effect"] == "NoSchedule"
    assert rule["metadata"]["annotations"]["bursar.dev/heir"] == f"{POOR}/of-v"
    world.turn(lasts - 4 * SECOND)
    assert len(world.rules) == 1
    world.turn(30 * SECOND)
    assert world.rules == {}
    assert len(world.written) == 1
    assert found(world) == []


def test_the_next_settler_keeps_it_on(world: Reclaiming) -> None:
    """In these seconds nothing but the grace period is known to it."""
    begin(world)
    forced(world)
    world.turn(2 * SECOND)

    world.restart()
    world.turn(MINUTE)

    assert len(world.rules) == 1
    world.turn(5 * MINUTE)
    assert world.rules == {}


def test_where_it_was_given_out_before_both_are_charged_and_a_finding_names_it(world: Reclaiming) -> None:
    begin(world)
    forced(world)
    world.allocates("next", "gpu-0", "q")

    world.turn(20 * SECOND)

    assert world.written == []
    assert found(world) == [
        "1 device was given to the next claim while a pod that was deleted by force might still use it, and"
        f" both are charged: {DRIVER}/n1/gpu-0 to team-a/next after {POOR}/of-v"
    ]


@pytest.mark.parametrize("mode", ["observe", "meter"])
def test_nothing_is_kept_for_a_namespace_that_is_not_enforced(world: Reclaiming, mode: str) -> None:
    begin(world, team_b=f"gpuHours: 1\nmode: {mode}")
    forced(world)
    world.turn(5 * SECOND)

    assert world.written == []


def test_nothing_is_kept_once_the_pod_has_ended(world: Reclaiming) -> None:
    begin(world)
    world.goes("v")
    world.town.hear(CLAIMS, device_claim("of-v", namespace=POOR))
    world.turn(5 * SECOND)

    assert world.written == []
