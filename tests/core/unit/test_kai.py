"""KAI: what its annotations request, what they are charged for, and each mistake in them."""

from typing import Any

import pytest

from tests.worlds import of_resources, pod
from timekeeper.core.dialects.others.kai import is_of_its_webhook
from timekeeper.core.request.estimates import estimated_rate
from timekeeper.core.request.inventory import charged_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Card

Json = dict[str, Any]

CARDS = (Card("a", 0, "A100", 40_000), Card("b", 1, "A100", 40_000))


def kai(annotations: Json, scheduler: str = "kai-scheduler", **limits: str) -> Json:
    """A pod of two containers, of which the first may have limits."""
    raw = pod(of_resources(dict(limits), "main"), of_resources({}, "logger"))
    raw["metadata"]["annotations"] = annotations
    raw["spec"]["schedulerName"] = scheduler
    return raw


# annotations -> cards, thousandths, MiB; and what a second costs on cards of 40,000 MiB: computed by hand
SAMPLES = [
    ({"gpu-fraction": "0.5"}, Ask(1, 500, 0), 500),
    ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, Ask(2, 250, 0), 500),
    ({"gpu-fraction": "1e-9"}, Ask(1, 1, 0), 1),  # legal there; charged with the least share
    ({"gpu-fraction": ".3335"}, Ask(1, 334, 0), 334),
    ({"gpu-memory": "2000"}, Ask(1, 0, 2000), 50),
    ({"gpu-memory": "10000", "gpu-fraction-num-devices": "2"}, Ask(2, 0, 10_000), 500),
]


@pytest.mark.parametrize(("annotations", "ask", "rate"), SAMPLES)
def test_its_annotations_request_a_part_of_cards(annotations: Json, ask: Ask, rate: int) -> None:
    request = parse(kai(annotations)).request

    assert request is not None
    assert (request.dialect, [(each.container, each.ask) for each in request.asks]) == (
        "kai",
        [("main", ask)],
    )
    assert estimated_rate(request, CARDS, (), "dominant") == rate


def test_a_container_can_be_named() -> None:
    request = parse(kai({"gpu-fraction": "0.5", "gpu-fraction-container-name": "logger"})).request

    assert request is not None
    assert [each.container for each in request.asks] == ["logger"]


MISTAKES = [
    ({"gpu-fraction": "NaN"}, "share-range", "gpu-fraction"),
    ({"gpu-fraction": "1.0"}, "share-range", "gpu-fraction"),
    ({"gpu-fraction": "0"}, "share-range", "gpu-fraction"),
    ({"gpu-fraction": "-0.5"}, "share-range", "gpu-fraction"),
    ({"gpu-fraction": "500m"}, "share-range", "gpu-fraction"),
    ({"gpu-fraction": "0.5" + "0" * 5000}, "share-range", "gpu-fraction"),
    ({"gpu-memory": "0"}, "amount", "gpu-memory"),
    ({"gpu-memory": "2Gi"}, "amount", "gpu-memory"),
    ({"gpu-memory": "9" * 30}, "amount", "gpu-memory"),
    ({"gpu-memory": "2000", "gpu-fraction-num-devices": "65"}, "amount", "gpu-fraction-num-devices"),
    ({"gpu-fraction": "0.5", "gpu-memory": "2000"}, "combination", "gpu-memory"),
    ({"gpu-fraction-num-devices": "2"}, "combination", "gpu-fraction-num-devices"),
    (
        {"gpu-fraction": "0.5", "gpu-fraction-container-name": "nobody"},
        "combination",
        "gpu-fraction-container-name",
    ),
]


@pytest.mark.parametrize(("annotations", "rule", "name"), MISTAKES)
def test_each_mistake_is_one_sentence_that_names_the_annotation(
    annotations: Json, rule: str, name: str
) -> None:
    (violation,) = parse(kai(annotations)).violations

    assert (violation.rule, violation.path) == (rule, f"metadata.annotations[{name}]")
    assert violation.sentence().startswith(f"metadata.annotations[{name}]: ")


def test_whole_cards_beside_a_fraction_are_two_dialects() -> None:
    (violation,) = parse(kai({"gpu-fraction": "0.5"}, **{"nvidia.com/gpu": "1"})).violations

    assert (violation.rule, "nvidia" in violation.got, "kai" in violation.got) == (
        "several-dialects",
        True,
        True,
    )


def test_the_annotations_mean_nothing_beside_another_scheduler() -> None:
    """KAI reads its own pods alone."""
    alone = parse(kai({"gpu-fraction": "0.5", "gpu-memory": "lots"}, "default-scheduler"))
    whole = parse(kai({"gpu-memory": "16G"}, "", **{"nvidia.com/gpu": "2"})).request

    assert (alone.request, alone.violations) == (None, ())
    assert whole is not None
    assert (whole.dialect, whole.asks[0].ask.devices) == ("nvidia", 2)


def test_cards_that_only_labels_describe_are_charged_for() -> None:
    labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "40000", "nvidia.com/gpu.product": "A100"}

    found = charged_cards({"metadata": {"labels": labels}, "status": {"capacity": {"nvidia.com/gpu": "2"}}})

    assert [(each.model, each.memory_mib) for each in found] == [("A100", 40_000)] * 2


def test_memory_of_unknown_cards_is_charged_as_whole_cards() -> None:
    request = parse(kai({"gpu-memory": "2000", "gpu-fraction-num-devices": "3"})).request

    assert request is not None
    assert estimated_rate(request, (), (), "dominant") == 3000


def test_its_webhook_repeats_the_request_in_memory_of_its_own_pod() -> None:
    name = "nvidia.com/container.main.gpu-memory.request"

    def is_its(value: str, asked: str = "2048", by: str = "kai-scheduler", called: str = name) -> bool:
        return is_of_its_webhook(kai({"gpu-memory": asked, called: value}, by), called)

    assert is_its("2Gi")
    assert is_its("2048Mi")
    for value in ("3Gi", "2G", "2048", "", "all", "2.0Gi8"):
        assert not is_its(value), value
    assert not is_its("2Gi", by="default-scheduler")
    assert not is_its("2Gi", asked="2048.0")
    assert not is_its("2Gi", called="nvidia.com/container.main.gpu-memory.limit")
    assert not is_its("2Gi", called="example.com/container.main.gpu-memory.request")
