"""koordinator: what its resources request, what they are charged for, and each mistake in them."""

from typing import Any

import pytest

from tests.worlds import of_resources, pod
from timekeeper.core.request.estimates import estimated_rate
from timekeeper.core.request.inventory import charged_cards, read_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask

Json = dict[str, Any]

GPU, CORE, MEMORY, RATIO, SHARED = (
    f"koordinator.sh/{each}" for each in ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio", "gpu.shared")
)
# as koordlet's Device becomes a node's resources: two cards of 16 GiB
NODE = {
    "metadata": {"labels": {"node.koordinator.sh/gpu-model": "T4"}},
    "status": {"capacity": {GPU: "200", CORE: "200", RATIO: "200", MEMORY: "32Gi", SHARED: "200"}},
}

# limits -> cards, thousandths, MiB, thousandths of memory; and the rate on these cards: computed by hand
SAMPLES = [
    ({GPU: "50"}, Ask(1, 500, 0, memory_milli=500), 500),
    ({GPU: "100"}, Ask(1, 1000, 0), 1000),
    ({GPU: "200"}, Ask(2, 1000, 0), 2000),
    ({CORE: "30", RATIO: "60"}, Ask(1, 300, 0, memory_milli=600), 600),
    ({RATIO: "200"}, Ask(2, 1000, 0), 2000),
    ({CORE: "50", RATIO: "100"}, Ask(1, 1000, 0), 1000),  # not shared, for no memory is left
    ({MEMORY: "4Gi"}, Ask(1, 0, 4096), 250),
    ({CORE: "60", MEMORY: "4Gi"}, Ask(1, 600, 4096), 600),
    ({SHARED: "2", CORE: "100", MEMORY: "8Gi"}, Ask(2, 500, 4096), 1000),
    ({SHARED: "2", RATIO: "100"}, Ask(2, 0, 0, memory_milli=500), 1000),
    ({MEMORY: "1"}, Ask(1, 0, 1), 1),
]


@pytest.mark.parametrize(("limits", "ask", "rate"), SAMPLES)
def test_its_resources_request_cards_or_parts_of_them(limits: Json, ask: Ask, rate: int) -> None:
    request = parse(pod(of_resources(limits))).request

    assert request is not None
    assert (request.dialect, [each.ask for each in request.asks]) == ("koordinator", [ask])
    assert estimated_rate(request, charged_cards(NODE), (), "dominant") == rate


MISTAKES = [
    ({GPU: "NaN"}, "amount", GPU),
    ({GPU: "0"}, "amount", GPU),
    ({GPU: "-50"}, "amount", GPU),
    ({GPU: "9" * 30}, "amount", GPU),
    ({GPU: "6500"}, "amount", GPU),
    ({GPU: "150"}, "share-range", GPU),
    ({RATIO: "150"}, "share-range", RATIO),
    ({CORE: "150", MEMORY: "4Gi"}, "share-range", CORE),
    ({SHARED: "2", CORE: "33", MEMORY: "4Gi"}, "share-range", CORE),
    ({MEMORY: "2Ti"}, "memory-range", MEMORY),
    ({CORE: "50"}, "combination", CORE),
    ({SHARED: "2"}, "combination", SHARED),
    ({GPU: "50", MEMORY: "4Gi"}, "combination", MEMORY),
    ({MEMORY: "4Gi", RATIO: "50"}, "combination", RATIO),
]


@pytest.mark.parametrize(("limits", "rule", "name"), MISTAKES)
def test_each_mistake_is_one_sentence_that_names_the_limit(limits: Json, rule: str, name: str) -> None:
    (violation,) = parse(pod(of_resources(limits))).violations

    assert (violation.rule, violation.path) == (rule, f"spec.containers[0].resources.limits[{name}]")


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({GPU: "150"}, "1 to 100, or a multiple of 100"),
        ({RATIO: "150"}, "1 to 100, or a multiple of 100"),
        ({CORE: "150", MEMORY: "4Gi"}, "a multiple of 1 up to 100"),
        ({CORE: "200", RATIO: "100"}, "a multiple of 1 up to 100"),
        ({SHARED: "2", CORE: "33", MEMORY: "4Gi"}, "a multiple of 2 up to 200"),
    ],
)
def test_what_is_allowed_instead_is_so(limits: Json, allowed: str) -> None:
    (violation,) = parse(pod(of_resources(limits))).violations

    assert violation.allowed == allowed


def test_its_cards_are_charged_for_and_never_given_out() -> None:
    assert [(each.model, each.memory_mib) for each in charged_cards(NODE)] == [("T4", 16_384)] * 2
    assert read_cards(NODE) is None
