"""vgpu-manager: what its resources request, what they are charged for, and each mistake in them."""

import json
from typing import Any

import pytest

from tests.worlds import of_resources, pod
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.estimates import estimated_rate
from timekeeper.core.request.inventory import charged_cards, read_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask

Json = dict[str, Any]

NUMBER, CORES, MEMORY = (f"nvidia.com/vgpu-{each}" for each in ("number", "cores", "memory"))
# the fields of its device plugin's own structure
REGISTERED = json.dumps(
    [
        {
            "id": index,
            "type": "Tesla T4",
            "uuid": f"GPU-{index}",
            "core": 100,
            "memory": 15_000,
            "number": 10,
            "numa": 0,
            "mig": False,
            "busId": f"0000:0{index}:00.0",
            "capability": 7.5,
            "healthy": True,
        }
        for index in range(2)
    ]
)


def node(text: str = REGISTERED) -> Json:
    """A node of its device plugin."""
    return {
        "metadata": {"annotations": {"nvidia.com/node-device-register": text}},
        "status": {"capacity": {NUMBER: "20"}},
    }


# limits -> cards, thousandths, MiB, thousandths of memory; and the rate on these cards: computed by hand
SAMPLES = [
    ({NUMBER: "1"}, Ask(1, 1000, 0), 1000),
    ({NUMBER: "2", CORES: "30", MEMORY: "1500"}, Ask(2, 300, 1500), 600),
    ({NUMBER: "1", CORES: "10", MEMORY: "7500"}, Ask(1, 100, 7500), 500),
    ({NUMBER: "1", MEMORY: "3000"}, Ask(1, 0, 3000), 200),
    ({MEMORY: "3000"}, Ask(1, 0, 3000), 200),
    ({NUMBER: "1", CORES: "40"}, Ask(1, 400, 0, memory_milli=1000), 1000),  # without an amount all memory
]


@pytest.mark.parametrize(("limits", "ask", "rate"), SAMPLES)
def test_its_resources_request_cards_and_amounts_of_each(limits: Json, ask: Ask, rate: int) -> None:
    request = parse(pod(of_resources(limits))).request

    assert request is not None
    assert (request.dialect, [each.ask for each in request.asks]) == ("vgpu-manager", [ask])
    assert estimated_rate(request, charged_cards(node()), (), "dominant") == rate


@pytest.mark.parametrize(
    ("limits", "rule", "name"),
    [
        ({NUMBER: "0"}, "amount", NUMBER),
        ({NUMBER: "NaN"}, "amount", NUMBER),
        ({NUMBER: "-1"}, "amount", NUMBER),
        ({NUMBER: "65"}, "vgpu-range", NUMBER),
        ({NUMBER: "1", CORES: "101"}, "vgpu-range", CORES),
        ({NUMBER: "1", MEMORY: "9" * 30}, "amount", MEMORY),
    ],
)
def test_each_mistake_is_one_sentence_that_names_the_limit(limits: Json, rule: str, name: str) -> None:
    (violation,) = parse(pod(of_resources(limits))).violations

    assert (violation.rule, violation.path) == (rule, f"spec.containers[0].resources.limits[{name}]")


def test_its_cards_are_charged_for_and_never_given_out() -> None:
    assert [(each.uuid, each.memory_mib) for each in charged_cards(node())] == [
        ("GPU-0", 15_000),
        ("GPU-1", 15_000),
    ]
    assert read_cards(node()) is None


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '[{"uuid":"a","memory":-1}]', "[" * 5000])
def test_a_description_that_cannot_be_read_is_no_exception_of_another_kind(text: str) -> None:
    with pytest.raises(UndecodableError):
        charged_cards(node(text))
