"""What a real driver, kube-scheduler and kubelet make of claims is read, and costs what it should."""

import pytest

from tests.kubelet import recorded
from timekeeper.accounts.claims.consumers import with_use
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.claims.allocation import read_claim
from timekeeper.core.claims.devices import DevicePools, read_slice
from timekeeper.core.claims.drivers import DriverRule, rules_of
from timekeeper.core.rating.allocations import charge_of

RULES = rules_of(tuple(DriverRule(name) for name in recorded.read("slices")))


@pytest.fixture(scope="module")
def pools() -> DevicePools:
    """The devices of all drivers."""
    found = DevicePools()
    for slices in recorded.read("slices").values():
        for each in slices:
            found.put(read_slice(each))
    return found


def test_each_claim_costs_its_part_of_whole_devices(pools: DevicePools) -> None:
    rates = {}
    for pod, raw in recorded.read("claims").items():
        allocation = read_claim(raw).allocation
        assert allocation is not None
        charge = charge_of(allocation, pools.find, RULES, BudgetSettings())
        assert (charge.doubt, charge.unknown_drivers) == ("", ())
        rates[pod] = charge.rate_milli

    assert rates == recorded.RATES


def test_a_claim_is_of_one_node_and_dated(pools: DevicePools) -> None:
    for raw in recorded.read("claims").values():
        allocation = read_claim(raw).allocation
        assert allocation is not None
        assert (allocation.node, allocation.stamp_ms is None) == ("real", False)


def test_a_pod_uses_the_claim_that_is_reserved_for_it() -> None:
    pods = recorded.read("pods")
    for name, raw in recorded.read("claims").items():
        using = with_use(pods[name], None)

        assert using is not None
        assert using.uid in read_claim(raw).consumers
