"""Pods that are deleted by force, with a grace period of ten minutes, on a real kubelet: one with a card, one
with a device of a claim. Both are charged while their containers may run, and by one rule."""

import time
from collections.abc import Iterator

import pytest

from tests.kubelet import claims
from tests.kubelet.claims import CLAIMS, claim_spec, wanted
from tests.kubelet.drivers import dra_drivers
from tests.kubelet.lagging import lagging
from tests.kubelet.worlds import PODS, STUBBORN, Json, World, container, gpu_pod, lives

DRIVER = "gpu.example.com"
SOON_MS, GRACE_S = 15_000, 600


@pytest.fixture(scope="module")
def with_devices(world: World) -> Iterator[World]:
    with dra_drivers(world, {DRIVER: ("--num-devices=4",)}), claims.prepared(world, {DRIVER: ""}):
        yield world


def begin(world: World, name: str) -> tuple[Json, Json]:
    """A pod with a card and one with a device, neither of which obeys SIGTERM."""
    spec = {"terminationGracePeriodSeconds": GRACE_S}
    world.create(gpu_pod(name, container("main", STUBBORN, gpu_percent="10"), **spec))
    call = world.stack.cp.api.call
    call("POST", CLAIMS, {"metadata": {"name": name}, "spec": claim_spec({"name": "gpu", **wanted(DRIVER)})})
    user = gpu_pod(name, container("main", STUBBORN), **spec)
    user["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    call("POST", claims.PODS, user)
    world.until(f"{name} to run", lambda: claims.begun(world, name))
    card, device = world.running(name), claims.pod(world, name)
    for pod in (card, device):
        world.said(pod, "main", "begun")
    world.until("its charge", lambda: name in claims.sessions(world) and world.session(card) is not None)
    return card, device


def delete(world: World, name: str, grace_s: int = 0) -> None:
    for pods in (PODS, claims.PODS):
        world.stack.cp.api.call("DELETE", f"{pods}/{name}", {"gracePeriodSeconds": grace_s})


def ran_on_ms(world: World, pids: list[int]) -> int:
    """For how long the last of them still runs."""
    begun = time.monotonic()
    world.until("their end", lambda: not any(map(lives, pids)))
    return round(1000 * (time.monotonic() - begun))


def charged_ms(world: World, name: str, card: Json) -> dict[str, int]:
    """For how long after their removal the card and the device are charged, as far as it is known now."""
    found = {"card": world.session(card) or {}, "device": claims.sessions(world)[name]}
    return {
        what: session["bound"] + session["amount"] // session["rateMilli"] - session["vanished"]
        for what, session in found.items()
    }


def test_a_kubelet_that_is_there_ends_both_and_both_are_charged_for_seconds(with_devices: World) -> None:
    card, device = begin(with_devices, "there")
    pids = [with_devices.pid(pod, "main") for pod in (card, device)]

    delete(with_devices, "there")

    assert ran_on_ms(with_devices, pids) < SOON_MS
    both = {"card": SOON_MS, "device": SOON_MS}
    with_devices.until("it to be charged so", lambda: charged_ms(with_devices, "there", card) == both)


def test_a_kubelet_that_is_away_runs_both_on_and_both_are_charged_until_it_is_back(
    with_devices: World,
) -> None:
    card, device = begin(with_devices, "away")
    pids = [with_devices.pid(pod, "main") for pod in (card, device)]
    with_devices.node.stop_kubelet()
    delete(with_devices, "away")
    begun = time.monotonic()
    with_devices.until(
        "more than seconds to be charged",
        lambda: min(charged_ms(with_devices, "away", card).values()) > 2 * SOON_MS,
    )
    assert all(map(lives, pids))

    with_devices.node.start_kubelet()
    ran_on_ms(with_devices, pids)
    ended_ms = 1000 * (time.monotonic() - begun)
    with_devices.node.wait_until_ready()

    def is_charged_to_its_end() -> bool:
        charged = charged_ms(with_devices, "away", card)
        return all(ended_ms - 5_000 < ms < ended_ms + 2 * SOON_MS for ms in charged.values())

    with_devices.until("it to be charged to its end", is_charged_to_its_end)


def test_a_kubelet_whose_watch_lags_has_ended_both_before_their_charge_ends(with_devices: World) -> None:
    with lagging(with_devices) as line:
        card, device = begin(with_devices, "lags")
        pids = [with_devices.pid(pod, "main") for pod in (card, device)]
        line.lag_s = 5

        delete(with_devices, "lags")

        assert 5_000 < ran_on_ms(with_devices, pids) < SOON_MS


def test_a_kubelet_that_has_begun_with_a_deletion_goes_on_with_it_whatever_comes_later(
    with_devices: World,
) -> None:
    card, device = begin(with_devices, "twice")
    pids = [with_devices.pid(pod, "main") for pod in (card, device)]
    delete(with_devices, "twice", grace_s=25)
    delete(with_devices, "twice")

    assert SOON_MS < ran_on_ms(with_devices, pids) < 27_000
    both = {"card": 27_000, "device": 27_000}
    with_devices.until("it to be charged so", lambda: charged_ms(with_devices, "twice", card) == both)
