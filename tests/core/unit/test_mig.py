"""What MIG instances cost: on every card, by each giver, a layout costs one card at most, and one
that uses all slices of compute costs one."""

from collections import Counter

import pytest

from tests.core.unit.test_claims import NVIDIA, charge
from tests.timekeeper.claims import allocated, device_slice
from tests.worlds import Json, card, inventory
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects.mig import profile_of, slices_of
from timekeeper.core.rating.nodes import cards_of_node
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.rating.weights import instance_doubt, weight_of
from timekeeper.core.request.inventory import charged_cards
from timekeeper.core.request.request import parse

# product, instances of one card, slices of compute that they have, of how many
LAYOUTS = [
    ("NVIDIA A30", "1g.6gb*4", 4, 4),
    ("NVIDIA A30", "2g.12gb+me 1g.6gb*2", 4, 4),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "1g.24gb*4", 4, 4),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "1g.24gb-me*2 2g.48gb+gfx", 4, 4),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "1g.24gb+me.all 1g.24gb-me*3", 4, 4),
    ("NVIDIA RTX PRO 5000 Blackwell", "1g.24gb*2", 2, 2),
    ("NVIDIA RTX PRO 4500 Blackwell", "2g.32gb", 2, 2),
    ("NVIDIA A100-SXM4-40GB", "1g.5gb*7", 7, 7),
    ("NVIDIA A100-SXM4-40GB", "1g.10gb*4", 4, 7),
    ("NVIDIA A100-SXM4-80GB", "3g.40gb 4g.40gb", 7, 7),
    ("NVIDIA A100-SXM4-80GB", "1c.3g.40gb*3 4g.40gb", 7, 7),
    ("NVIDIA H100 80GB HBM3", "3g.40gb*2", 6, 7),
    ("NVIDIA H100 80GB HBM3", "2g.20gb*3 1g.10gb+me", 7, 7),
    ("NVIDIA H100 NVL", "1g.24gb*4", 4, 7),
    ("NVIDIA GH200 480GB", "1g.12gb*2 2g.24gb 3g.48gb", 7, 7),
    ("NVIDIA H200", "7g.141gb", 7, 7),
    ("NVIDIA B200", "1g.23gb*2 2g.45gb 3g.90gb", 7, 7),
    ("NVIDIA GB200", "1g.24gb*7", 7, 7),
    ("NVIDIA B300 SXM6 AC", "1g.34gb*7", 7, 7),
]
GPU = "nvidia.com/gpu"


def instances(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for word in text.split():
        name, _, number = word.partition("*")
        found[name] += int(number or 1)
    return found


def node(capacity: Json, **labels: str) -> Json:
    return {"metadata": {"name": "n", "labels": labels}, "status": {"capacity": capacity}}


def rate_on(raw: Json, resource: str) -> int:
    """What one of the resource costs there."""
    limits = {"resources": {"limits": {resource: "1"}}, "name": "main"}
    request = parse({"metadata": {}, "spec": {"containers": [limits]}}).request
    assert request is not None
    there = cards_of_node(raw, charged_cards(raw))
    return rated(Demand(request=request), there, BudgetSettings()).rate_milli


def by_mixed_strategy(product: str, name: str, layout: Counter[str]) -> int:
    names = {f"nvidia.com/mig-{profile.replace('+', '.')}": str(number) for profile, number in layout.items()}
    raw = node(names, **{f"{GPU}.product": product.replace(" ", "-")})
    return rate_on(raw, f"nvidia.com/mig-{name.replace('+', '.')}")


def by_single_strategy(product: str, name: str, layout: Counter[str]) -> int:
    labels = {
        f"{GPU}.product": f"{product.replace(' ', '-')}-MIG-{name.replace('+', '.')}",
        f"{GPU}.count": str(layout[name]),
        f"{GPU}.memory": "9856",
        "nvidia.com/mig.strategy": "single",
    }
    return rate_on(node({GPU: str(layout[name])}, **labels), GPU)


def by_the_agents_inventory(product: str, name: str, layout: Counter[str]) -> int:
    return weight_of(f"{product} MIG {name}", ())


def by_a_claim(product: str, name: str, layout: Counter[str]) -> int:
    """With counters, by which an instance of three slices has half of the card's memory."""
    attributes = {"type": "mig", "productName": product, "profile": name, "parentUUID": "GPU-1"}
    body = device_slice(
        "mig", driver=NVIDIA, attributes={key: {"string": each} for key, each in attributes.items()}
    )
    body["spec"]["sharedCounters"] = [{"name": "s", "counters": {"memory": {"value": "80Gi"}}}]
    taken = {"counterSet": "s", "counters": {"memory": {"value": "40Gi"}}}
    body["spec"]["devices"][0]["consumesCounters"] = [taken]
    return charge(allocated("mig", driver=NVIDIA), of=(body,)).gpus[0].share_milli


@pytest.mark.parametrize(
    "giver", [by_mixed_strategy, by_single_strategy, by_the_agents_inventory, by_a_claim]
)
@pytest.mark.parametrize(("product", "text", "used", "whole"), LAYOUTS)
def test_a_layout_costs_its_slices_of_one_card(
    giver: object, product: str, text: str, used: int, whole: int
) -> None:
    layout = instances(text)
    assert callable(giver)

    costs = {name: giver(product, name, layout) for name in layout}

    total = sum(costs[name] * number for name, number in layout.items())
    exact = 1000 * used / whole
    assert exact <= total < exact + sum(layout.values())
    for name, number in layout.items():
        profile = profile_of(name)
        assert profile is not None
        assert number <= profile.most
        assert slices_of(product, profile).doubt == ""


SIZE = "nothing says how many slices the card has"


@pytest.mark.parametrize(
    ("labels", "capacity", "doubt"),
    [
        ({}, {"nvidia.com/mig-1g.24gb": "4"}, "1g.24gb of a card of no known product counts as 1/7"),
        ({f"{GPU}.product": "NVIDIA-X900"}, {"nvidia.com/mig-2g.48gb": "4"}, "NVIDIA-X900 counts as 2/4"),
        ({}, {"nvidia.com/mig-1g.99gb": "4"}, SIZE),
        ({f"{GPU}.memory": "811008"}, {"nvidia.com/mig-1g.99gb": "7"}, ""),
        ({}, {"nvidia.com/mig-1g.5gb": "4"}, ""),
        ({}, {"nvidia.com/mig-1g.24gb": "2", "nvidia.com/mig-3g.47gb": "1"}, ""),
    ],
)
def test_where_nothing_says_the_size_a_doubt_names_the_assumption(
    labels: dict[str, str], capacity: Json, doubt: str
) -> None:
    found = cards_of_node(node(capacity, **labels), ()).doubts

    assert doubt in found.get(next(iter(capacity)), "")
    assert bool(found) == bool(doubt)


def test_a_weight_with_the_profile_states_what_an_instance_costs() -> None:
    instance, weights = "NVIDIA X900 MIG 1g.24gb", (("X900", 2000), ("X900 MIG 1g.24gb", 500))

    assert [weight_of(instance, known) for known in (weights[:1], weights)] == [286, 500]
    assert [bool(instance_doubt(instance, known)) for known in (weights[:1], weights)] == [True, False]


GKE = "cloud.google.com/gke-"
T4 = {f"{GKE}accelerator": "nvidia-tesla-t4"}
A100 = {f"{GKE}accelerator": "nvidia-tesla-a100", f"{GKE}gpu-partition-size": "1g.5gb"}
SHARING = {f"{GKE}gpu-sharing-strategy": "time-sharing", f"{GKE}max-shared-clients-per-gpu": "4"}


@pytest.mark.parametrize(
    ("cards", "offered", "labels", "rate"),
    [(1, 4, {}, 250), (2, 8, {"nvidia.com/gpu.replicas": "4"}, 250), (3, 9, {}, 334), (7, 8, {}, 1000)],
)
def test_a_time_slice_of_described_cards_costs_its_part_of_one(
    cards: int, offered: int, labels: dict[str, str], rate: int
) -> None:
    """Of a node whose plugin makes several of each card that the agent describes."""
    raw = node({GPU: str(offered)}, **labels)
    raw["metadata"]["annotations"] = {"bursar.dev/inventory": inventory(*map(card, range(cards)))}

    assert rate_on(raw, GPU) == rate


@pytest.mark.parametrize(
    ("labels", "rate"),
    [
        (T4, 1000),
        (T4 | SHARING, 250),
        (T4 | SHARING | {f"{GKE}gpu-sharing-strategy": "mps"}, 250),
        (A100, 143),
        (A100 | SHARING, 36),
        ({"nvidia.com/gpu.replicas": "4"}, 250),
        ({"karpenter.k8s.aws/instance-gpu-name": "t4", "nvidia.com/gpu.replicas": "4"}, 250),
        (
            {
                "nvidia.com/mig.strategy": "single",
                f"{GPU}.product": "NVIDIA-A30",
                f"{GPU}.slices.gi": "2",
                f"{GPU}.memory": "11968",
                f"{GPU}.count": "2",
            },
            500,
        ),
    ],
)
def test_labels_say_which_part_of_a_card_one_gpu_is(labels: dict[str, str], rate: int) -> None:
    raw = node({GPU: "8"}, **labels)

    assert rate_on(raw, GPU) == rate
    assert cards_of_node(raw, charged_cards(raw)).doubt == ""
