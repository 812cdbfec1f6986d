"""Nodes whose NVIDIA plugin gives out replicas and MIG instances, also beside whole cards: pods that others
bound count there and close nothing, and what is left is given out."""

import json

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from tests.scheduler_ext.gang_worlds import GangWorld, members
from tests.scheduler_ext.worlds import Json, asking, bound, node, read, rebuilt, request_of
from tests.worlds import card, of_resources
from timekeeper.core.values import Placement

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"


def there(capacity: dict[str, int], left_over: str = "", **labels: str) -> Json:
    """A node without an inventory; of ``left_over`` nothing is allocatable."""
    capacities = {name: str(amount) for name, amount in capacity.items()}
    allocatable = {name: "0" if name == left_over else amount for name, amount in capacities.items()}
    named = {f"nvidia.com/gpu.{name}": text for name, text in labels.items()}
    status = {"capacity": capacities, "allocatable": allocatable}
    return {"metadata": {"name": "n", "labels": named}, "status": status}


def pod(resource: str, amount: int = 1, name: str = "p", **annotations: str) -> Json:
    raw = asking(of_resources({resource: str(amount)}, "main"), name=name)
    raw["metadata"]["annotations"] = dict(annotations)
    return raw


def metered(resource: str, amount: int = 1, name: str = "metered") -> Json:
    """A pod that another scheduler bound."""
    return bound(pod(resource, amount, name), "n", None)


def placed(resource: str, amount: int, card_: str, name: str = "ours") -> Json:
    given = {"uuid": card_, "index": 0, "share_milli": 0, "memory_mib": 0, "resources": {resource: amount}}
    return bound(
        pod(resource, amount, name), "n", json.dumps({"version": 1, "containers": {"main": [given]}})
    )


REPLICAS = there({SHARED: 8}, count="2")
BOTH = there({GPU: 2, SHARED: 4}, replicas="4")
ALL = there({GPU: 1, SHARED: 4, MIG: 7}, replicas="4")
BEFORE = there({SHARED: 8, GPU: 2}, left_over=GPU, count="2")


@pytest.mark.parametrize(
    ("node_", "pods", "resource", "most"),
    [
        (REPLICAS, [], SHARED, 4),
        (REPLICAS, [metered(SHARED)], SHARED, 4),
        (REPLICAS, [metered(SHARED, 3), metered(SHARED, 3, "second")], SHARED, 1),
        (REPLICAS, [metered(SHARED, 2), placed(SHARED, 4, "card0")], SHARED, 2),
        (REPLICAS, [placed(SHARED, 3, "another")], SHARED, 4),
        (REPLICAS, [metered(SHARED, 8)], SHARED, 0),
        (there({MIG: 7}), [metered(MIG, 3)], MIG, 4),
        (BOTH, [], SHARED, 4),
        (BOTH, [metered(SHARED, 3), metered(GPU, 1, "second")], SHARED, 1),
        (BOTH, [metered(SHARED, 3), metered(GPU, 1, "second")], GPU, 1),
        (BOTH, [metered(GPU, 2)], SHARED, 4),
        (BOTH, [metered(GPU, 2)], GPU, 0),
        (BOTH, [], MIG, 0),
        (ALL, [metered(MIG, 5)], MIG, 2),
        (ALL, [metered(MIG, 5)], SHARED, 4),
        (ALL, [metered(MIG, 5)], GPU, 1),
        (BEFORE, [metered(GPU, 2)], SHARED, 4),
        (there({SHARED: 8, GPU: 2}, left_over=SHARED), [metered(SHARED)], GPU, 2),
    ],
)
def test_what_others_bound_counts_and_the_rest_is_given_out(
    node_: Json, pods: list[Json], resource: str, most: int
) -> None:
    found = rebuilt([node_], pods).node("n")

    assert found.closed == ""
    fits = [
        amount
        for amount in range(1, 8)
        if isinstance(fit(request_of(pod(resource, amount)), found), Placement)
    ]
    assert max(fits, default=0) == most


@pytest.mark.parametrize(
    ("pods", "held_milli"),
    [
        ([metered(MIG, 3)], 3_000),
        ([metered(MIG, 3), metered(GPU, 1, "second")], 4_000),
        ([metered(SHARED)], 250),
    ],
)
def test_caps_count_an_instance_as_one_card(pods: list[Json], held_milli: int) -> None:
    assert rebuilt([ALL], pods).held.get("team-a") == held_milli


def test_whole_cards_of_the_inventory_are_given_out_beside_instances() -> None:
    instance = card(1) | {"model": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}
    raw = node("n", card(0), instance, capacity={GPU: "1", MIG: "7"})

    found = rebuilt([raw], []).node("n")

    assert found.closed == ""
    assert [whole.uuid for whole in found.cards if not whole.resources] == [card(0)["uuid"]]
    assert isinstance(fit(request_of(pod(GPU)), found), Placement)
    assert isinstance(fit(request_of(pod(MIG)), found), Placement)


@pytest.mark.parametrize(("left_over", "planned"), [("", {"a": "n", "b": "n"}), (MIG, {})])
def test_a_gang_of_instances_is_planned_where_its_plugin_gives_them_out(
    left_over: str, planned: dict[str, str]
) -> None:
    world = GangWorld({})
    world.cache.node_updated(read_node(there({MIG: 7}, left_over)))
    for raw in members("ab"):
        containers = asking(of_resources({MIG: "1"}, "main"))["spec"]["containers"]
        world.put({**raw, "spec": {**raw["spec"], "containers": containers}})

    assert world.step().planned == planned


def test_kube_scheduler_counts_instances() -> None:
    assert read(asking(of_resources({MIG: "2"}, "main"))).amounts == ((MIG, 2),)
