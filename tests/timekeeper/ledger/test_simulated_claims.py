"""``POST /v1/simulate`` with pods that ask for GPUs by device claims, which need not exist."""

from dataclasses import replace

import pytest

from tests.timekeeper.ledger.test_held_claims import device_class
from tests.timekeeper.ledger.test_simulate_api import Planner, planner_of
from tests.timekeeper.worlds import T0, Json, Town, budgets, lease, node
from tests.webhook.worlds import POLICY
from timekeeper.core.request.claims import KnownClaims
from timekeeper.core.request.device_classes import read_class

ONE_DATABASE = "arithmetic over statements that other modules read on both"

CLASSES = {each.name: each for each in [read_class(device_class("gpu", "gpu.nvidia.com"))]}
KNOWN = KnownClaims(classes=CLASSES)


@pytest.fixture
def planner(town: Town) -> Planner:
    """Of a webhook that knows one class and no claims."""
    entry = "gpuHours: 100\nperiod: month\nonExhausted: hold"
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(team_a=entry)))
    town.advance(0)
    return planner_of(town, replace(POLICY, claims=KNOWN))


def pod(**named: str) -> Json:
    container = {"name": "m", "image": "x", "resources": {"claims": [{"name": "c"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container], "resourceClaims": [{"name": "c", **named}]},
    }


def requests(count: int, of: str = "gpu") -> Json:
    return {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": of, "count": count}}]}}


TEMPLATE = {"kind": "ResourceClaimTemplate", "metadata": {"name": "it"}, "spec": {"spec": requests(3)}}
CLAIM = {"kind": "ResourceClaim", "metadata": {"name": "its"}, "spec": requests(2)}
BOTH = [TEMPLATE, CLAIM]


@pytest.mark.parametrize(
    ("named", "gpus"), [({"resourceClaimTemplateName": "it"}, 3), ({"resourceClaimName": "its"}, 2)]
)
def test_a_pod_costs_what_the_claims_of_its_manifest_ask_for(
    planner: Planner, named: dict[str, str], gpus: int
) -> None:
    answer = planner.asks(pod(**named), claims=BOTH)

    (one,) = answer["pods"]
    assert (one["outcome"], one["held"]) == ("unknown", "")
    assert (one["cost"]["rateMilli"], one["cost"]["gpuHoursPerDay"]) == (1000 * gpus, str(24 * gpus))
    assert answer["note"].startswith("kube-scheduler allocates devices to claims")
    assert answer["after"]["now"]["rateMilli"] == 1000 * gpus


def test_without_them_it_would_wait_until_they_are_there(planner: Planner) -> None:
    (one,) = planner.asks(pod(resourceClaimTemplateName="it"))["pods"]

    assert (one["held"], one["cost"]["rateMilli"]) == ("turn", 0)


def test_a_claim_of_too_many_devices_is_refused_as_admission_does(planner: Planner) -> None:
    large = {**CLAIM, "spec": requests(33)}

    (one,) = planner.asks(pod(resourceClaimName="its"), claims=[large])["pods"]

    assert one["outcome"] == "refused"
    assert "no claim is allocated so many devices" in one["refusal"]


def test_what_is_supposed_is_not_kept(planner: Planner) -> None:
    planner.asks(pod(resourceClaimName="its"), claims=BOTH)

    assert (KNOWN.claims, KNOWN.templates) == ({}, {})


def test_more_claims_than_fifty_are_a_mistake(planner: Planner) -> None:
    answer = planner.asks(pod(resourceClaimName="its"), status=400, claims=[CLAIM] * 51)

    assert answer["field"] == "claims"
