"""Replicas and MIG instances of NVIDIA's device plugin: what they mean, and what they cost."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import Node, read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.allocation import allocation_of
from scheduler_ext.snapshot.node_info import node_info_of, with_allocation
from tests.webhook.worlds import governed
from tests.worlds import card, inventory, of_resources, pod
from timekeeper.core.request.cards import amounts_by_card, rate
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Placement

Json = dict[str, Any]

SHARED, MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-"


def node(capacity: Json, **labels: str) -> Node:
    names = {f"nvidia.com/gpu.{name}": text for name, text in labels.items()}
    status = {"capacity": capacity, "allocatable": capacity}
    return read_node({"metadata": {"name": "n", "labels": names}, "status": status})


def placed(limits: Json, on: Node) -> Placement:
    request = parse(pod(of_resources(limits))).request
    assert request is not None
    found = fit(request, node_info_of("n", on, {}))
    assert not isinstance(found, Refusal), found
    return found


def costs(limits: Json, on: Node) -> int:
    """The rate of a pod with these limits, in thousandths of a card."""
    request = parse(pod(of_resources(limits))).request
    assert request is not None
    return rate(amounts_by_card(request, placed(limits, on)), on.cards, ())


@pytest.mark.parametrize(
    ("limits", "ask"),
    [
        ({SHARED: "1"}, Ask(1, 0, 0, ((SHARED, 1),))),
        ({SHARED: "3"}, Ask(1, 0, 0, ((SHARED, 3),))),
        ({f"{MIG}1g.5gb": "2"}, Ask(1, 0, 0, ((f"{MIG}1g.5gb", 2),))),
        ({f"{MIG}3g.20gb": "1"}, Ask(1, 0, 0, ((f"{MIG}3g.20gb", 3),))),
        ({f"{MIG}1g.10gb.me": "1"}, Ask(1, 0, 0, ((f"{MIG}1g.10gb.me", 1),))),
    ],
)
def test_its_words_are_replicas_and_slices(limits: Json, ask: Ask) -> None:
    request = parse(pod(of_resources(limits))).request

    assert request is not None
    assert [each.ask for each in request.asks] == [ask]


@pytest.mark.parametrize("resource", [SHARED, f"{MIG}1g.5gb"])
@pytest.mark.parametrize("amount", ["0", "-1", "0.5", "NaN", "9" * 30])
def test_an_amount_that_it_cannot_count_is_refused_with_the_field(resource: str, amount: str) -> None:
    (violation,) = parse(pod(of_resources({resource: amount}))).violations

    assert violation.rule == "amount"
    assert violation.path == f"spec.containers[0].resources.limits[{resource}]"


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({f"{MIG}8g.5gb": "1"}, "no MIG profile has this name"),
        ({f"{MIG}x": "1"}, "no MIG profile has this name"),
        ({f"{MIG}1g.5gb": "8"}, "more instances than a card has"),
        ({f"{MIG}4g.20gb": "2"}, "more instances than a card has"),
        ({f"{MIG}1g.5gb": "1", f"{MIG}2g.10gb": "1"}, "in one container"),
    ],
)
def test_what_no_card_can_give_is_refused(limits: Json, problem: str) -> None:
    (violation,) = parse(pod(of_resources(limits))).violations

    assert problem in violation.problem
    example = violation.example.split(":")[0]
    assert parse(pod(of_resources({example: "1"}))).request is not None


@pytest.mark.parametrize(
    ("capacity", "labels", "limits", "milli"),
    [
        ({SHARED: "40"}, {"count": "4"}, {SHARED: "1"}, 100),
        ({SHARED: "40"}, {"count": "4"}, {SHARED: "10"}, 1000),
        ({SHARED: "4"}, {}, {SHARED: "1"}, 250),
        ({f"{MIG}1g.5gb": "14"}, {}, {f"{MIG}1g.5gb": "1"}, 143),
        ({f"{MIG}3g.20gb": "2", f"{MIG}2g.10gb": "2"}, {}, {f"{MIG}3g.20gb": "1"}, 429),
        ({f"{MIG}7g.80gb": "1"}, {}, {f"{MIG}7g.80gb": "1"}, 1000),
        ({f"{MIG}1g.6gb": "4"}, {}, {f"{MIG}1g.6gb": "1"}, 250),
        ({f"{MIG}2g.12gb": "2"}, {}, {f"{MIG}2g.12gb": "1"}, 500),
    ],
)
def test_each_costs_its_part_of_a_card(capacity: Json, labels: Json, limits: Json, milli: int) -> None:
    assert costs(limits, node(capacity, **labels)) == milli


def test_its_cards_are_those_of_the_plugin_beside_an_inventory_of_ours_too() -> None:
    raw = {
        "metadata": {"name": "n", "annotations": {"bursar.dev/inventory": inventory(card(0))}},
        "status": {"capacity": {SHARED: "4"}},
    }

    assert [each.resources for each in read_node(raw).cards] == [((SHARED, 4),)]


def test_a_node_takes_as_many_pods_as_its_plugin_has_instances_for() -> None:
    """Two cards of two instances of three slices, and one each of an instance of one slice."""
    there = node({f"{MIG}3g.20gb": "4", f"{MIG}1g.5gb": "2"}, product="A100")
    info = node_info_of("n", there, {})
    for at in range(4):
        read = read_pod(pod(of_resources({f"{MIG}3g.20gb": "1"})))
        assert read is not None
        assert read.request is not None
        found = fit(read.request, info)
        assert not isinstance(found, Refusal), at
        bound = replace(allocation_of(read, found, "bound"), uid=f"uid-{at}")
        info = with_allocation(info, bound)
    request = parse(pod(of_resources({f"{MIG}3g.20gb": "1"}))).request
    assert request is not None
    refusal = fit(request, info)

    assert (there.family, {card.model for card in there.cards}) == ("nvidia-mig", {"A100"})
    assert isinstance(refusal, Refusal)
    assert refusal.kind == "room"


def test_the_plugin_shows_the_devices_and_kube_scheduler_calls_the_extender_for_every_profile() -> None:
    raw = pod(of_resources({f"{MIG}1g.5gb": "1"}), of_resources({}, "other"))
    after = governed(raw)

    main, other, *_ = after["spec"]["containers"]
    assert main["resources"]["limits"] == {f"{MIG}1g.5gb": "1", "bursar.dev/gpu-placement": "1"}
    assert not any(each["name"] == "NVIDIA_VISIBLE_DEVICES" for each in main.get("env", []))
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in other["env"]
    assert (
        parse(after).request
        == parse(pod(of_resources({f"{MIG}1g.5gb": "1"}), of_resources({}, "other"))).request
    )
