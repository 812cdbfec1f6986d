"""A pod that is deleted by force, with ten minutes of grace, on a real kubelet: with a card, and with a
device of a claim. It is charged while its container may run, by one rule for both."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kubelet import claims
from tests.kubelet.claims import CLAIMS, claim_spec, wanted
from tests.kubelet.drivers import dra_drivers
from tests.kubelet.lagging import lagging
from tests.kubelet.worlds import PODS, STUBBORN, Json, World, container, gpu_pod, lives

DRIVER = "gpu.example.com"
SOON_MS, GRACE_S = 15_000, 600
# a kubelet renews its Lease after 10 to 10.4 s (component-helpers, `lease.controller.Run`), and later where
# the machine has much to do: by so much the charge is longer
LATE_MS = 15_000


@dataclass(frozen=True, slots=True)
class Holding:
    """Pods that do not obey SIGTERM, all with a card or all with a device."""

    world: World
    is_device: bool

    def begin(self, name: str) -> int:
        """A pod; its first process."""
        call, main = self.world.stack.cp.api.call, container("main", STUBBORN, gpu_percent="10")
        body = gpu_pod(name, main, terminationGracePeriodSeconds=GRACE_S)
        if self.is_device:
            spec = claim_spec({"name": "gpu", **wanted(DRIVER)})
            call("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
            main["resources"] = {"claims": [{"name": "gpu"}]}
            body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        call("POST", self.pods, body)
        self.world.until(f"{name} to run", lambda: "Running" in str(self.pod(name)["status"]))
        self.world.said(self.pod(name), "main", "begun")
        self.world.until("its charge", lambda: self.session(name) != {})
        return self.world.pid(self.pod(name), "main")

    @property
    def pods(self) -> str:
        """The path of its pods."""
        return claims.PODS if self.is_device else PODS

    def pod(self, name: str) -> Json:
        found: Json = self.world.stack.cp.api.call("GET", f"{self.pods}/{name}")
        return found

    def session(self, name: str) -> Json:
        namespace = self.pods.split("/")[4]
        query = f"/v1/sessions?namespace={namespace}"
        listed: list[Any] = self.world.stack.get(query, self.world.reader)["sessions"]
        return next((row for row in listed if row["pod"] == name), {})

    def delete(self, name: str, grace_s: int = 0) -> None:
        self.world.stack.cp.api.call("DELETE", f"{self.pods}/{name}", {"gracePeriodSeconds": grace_s})

    def was_charged_for(self, name: str, least_ms: int) -> bool:
        """Whether it was charged for this time after its removal, or for as much more as a Lease may be late.
        An open charge is longer when that can be told."""
        vanished_ms, most_ms = self.session(name)["vanished"], least_ms + LATE_MS
        has_passed = vanished_ms is not None and 1000 * time.time() > vanished_ms + most_ms
        return has_passed and least_ms <= self.charged_ms(name) < most_ms

    def charged_ms(self, name: str) -> int:
        """For how long after its removal, as far as it is known now; 0: nothing is known of that."""
        session = self.session(name)
        charged_ms: int = session["bound"] + session["amount"] // session["rateMilli"]
        return charged_ms - session["vanished"] if session["vanished"] else 0

    def ran_on_ms(self, pid: int) -> int:
        """For how long it still runs."""
        begun = time.monotonic()
        self.world.until("its end", lambda: not lives(pid))
        return round(1000 * (time.monotonic() - begun))


@pytest.fixture(scope="module", params=["card", "device"])
def holding(world: World, request: pytest.FixtureRequest) -> Iterator[Holding]:
    if request.param == "card":
        yield Holding(world, is_device=False)
        return
    with dra_drivers(world, {DRIVER: ("--num-devices=4",)}), claims.prepared(world, {DRIVER: ""}):
        yield Holding(world, is_device=True)


def test_a_kubelet_that_is_there_ends_it_and_it_is_charged_for_seconds(holding: Holding) -> None:
    pid = holding.begin("there")

    holding.delete("there")

    assert holding.ran_on_ms(pid) < SOON_MS
    holding.world.until("it to be charged so", lambda: holding.was_charged_for("there", SOON_MS))


def test_a_kubelet_that_is_away_runs_it_on_and_it_is_charged_until_it_is_back(holding: Holding) -> None:
    pid = holding.begin("away")
    holding.world.node.stop_kubelet()
    holding.delete("away")
    begun = time.monotonic()
    holding.world.until("more than seconds", lambda: holding.charged_ms("away") > 2 * SOON_MS)
    assert lives(pid)

    holding.world.node.start_kubelet()
    holding.ran_on_ms(pid)
    ended_ms = 1000 * (time.monotonic() - begun)
    holding.world.node.wait_until_ready()

    holding.world.until(
        "its end to be charged", lambda: -SOON_MS < ended_ms - holding.charged_ms("away") < 2_000
    )


def test_a_kubelet_whose_watch_lags_has_ended_it_before_its_charge_ends(holding: Holding) -> None:
    with lagging(holding.world) as line:
        pid = holding.begin("lags")
        line.lag_s = 5

        holding.delete("lags")

        assert 5_000 < holding.ran_on_ms(pid) < SOON_MS


def test_a_kubelet_that_has_begun_with_a_deletion_goes_on_with_it_whatever_comes_later(
    holding: Holding,
) -> None:
    pid = holding.begin("twice")
    holding.delete("twice", grace_s=25)
    holding.world.said(holding.pod("twice"), "main", "asked")
    holding.delete("twice")

    assert SOON_MS < holding.ran_on_ms(pid) < 27_000
    holding.world.until("it to be charged so", lambda: holding.was_charged_for("twice", 27_000))
