"""nano-gpu in its four forms: what its words mean, which cards its nodes have, and what its agent reads."""

from typing import Any

import pytest

from tests.worlds import of_resources, pod
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.dialect import PlacedRequest
from timekeeper.core.request.inventory import read_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Card, Placement, Slice

Json = dict[str, Any]

V01 = ("nano-gpu.io/gpu-core", "nano-gpu.io/gpu-memory")
V03 = ("nano-gpu/gpu-percent", "")
QGPU = ("nano-gpu/qgpu-core", "nano-gpu/qgpu-memory")
ELASTIC = ("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory")
TWO = Placement(
    (
        ("worker", (Slice("card0", 0, 1000, 8000), Slice("card3", 3, 1000, 8000))),
        ("init", (Slice("card2", 2, 300, 2400),)),
    )
)


def amounts(names: tuple[str, str], core: str | None, memory: str | None) -> Json:
    """Limits or capacities in these words."""
    given = zip(names, (core, memory), strict=True)
    return {name: amount for name, amount in given if name and amount is not None}


@pytest.mark.parametrize(
    ("words", "core", "memory", "ask"),
    [
        (V01, "50", "7", Ask(1, 500, 7)),
        (V01, "100", "7", Ask(1, 1000, 0)),
        (V03, "30", None, Ask(1, 300, 0)),
        (V03, "100", None, Ask(1, 1000, 0)),
        (QGPU, "20", "3000", Ask(1, 200, 3000)),
        (ELASTIC, "50", "4096", Ask(1, 500, 4096)),
        (ELASTIC, "50", None, Ask(1, 500, 0)),
        (ELASTIC, None, "4", Ask(1, 0, 4)),
        (ELASTIC, "300", None, Ask(3, 1000, 0)),
    ],
)
def test_its_words_mean_shares_memory_and_whole_cards(
    words: tuple[str, str], core: str | None, memory: str | None, ask: Ask
) -> None:
    request = parse(pod(of_resources(amounts(words, core, memory)))).request

    assert request is not None
    assert [each.ask for each in request.asks] == [ask]


@pytest.mark.parametrize(
    ("words", "core", "memory", "rule"),
    [
        (ELASTIC, "150", None, "share-range"),  # nano booked one card for it
        (V01, "200", None, "share-range"),  # one card a container
        (V03, "101", None, "share-range"),
        (QGPU, "6500", None, "share-range"),
        (ELASTIC, "-1", None, "amount"),
        (ELASTIC, "0", "4", "amount"),
        (V03, "NaN", None, "amount"),
        (QGPU, "20", "9" * 30, "amount"),
    ],
)
def test_what_it_would_have_placed_wrong_is_refused_with_the_field(
    words: tuple[str, str], core: str, memory: str | None, rule: str
) -> None:
    parsed = parse(pod(of_resources(amounts(words, core, memory))))

    assert parsed.request is None
    assert [each.rule for each in parsed.violations] == [rule]
    assert parsed.violations[0].path.startswith(f"spec.containers[0].resources.limits[{words[0][:8]}")


def test_two_of_its_forms_in_one_pod_are_two_dialects() -> None:
    parsed = parse(pod(of_resources({V03[0]: "30"}, "a"), of_resources({ELASTIC[0]: "30"}, "b")))

    assert [each.rule for each in parsed.violations] == ["several-dialects"]


@pytest.mark.parametrize(
    ("words", "core", "memory", "labels", "cards"),
    [
        (ELASTIC, "200", "16001", {}, [("card0", 0, "GPU", 8000), ("card1", 1, "GPU", 8000)]),
        (V01, "100", "15", {"nvidia.com/gpu.product": "T4"}, [("card0", 0, "T4", 15)]),
        (V03, "100", None, {"nvidia.com/gpu.memory": "15360"}, [("card0", 0, "GPU", 15360)]),
        (V03, "100", None, {"nvidia.com/gpu.memory": "much"}, [("card0", 0, "GPU", 1000)]),
        (V03, "99", None, {}, []),
        (QGPU, "0", "3000", {}, []),
    ],
)
def test_a_node_has_as_many_cards_as_it_has_hundreds_all_alike(
    words: tuple[str, str],
    core: str,
    memory: str | None,
    labels: Json,
    cards: list[tuple[str, int, str, int]],
) -> None:
    node = {"metadata": {"labels": labels}, "status": {"capacity": amounts(words, core, memory)}}

    assert list(read_cards(node) or ()) == [Card(*each) for each in cards]


def test_a_node_has_at_most_64_cards_whatever_it_advertises() -> None:
    capacity = amounts(ELASTIC, str(2**62), str(2**62))

    assert len(read_cards({"status": {"capacity": capacity}}) or ()) == 64


@pytest.mark.parametrize(
    ("name", "annotations", "assumed"),
    [
        ("nano-v0.1", {"nano-gpu.io/gpu-worker": "0,3", "nano-gpu.io/gpu-init": "2"}, "nano-gpu.io/gpu"),
        (
            "nano-v0.3",
            {
                "nano-gpu/container-worker": "0,3",
                "nano-gpu/container-init": "2",
                "nano-gpu/container-plain": "-1",
            },
            "nano-gpu/assume",
        ),
        ("qgpu", {"nano-gpu/container-worker": "0,3", "nano-gpu/container-init": "2"}, "nano-gpu/assume"),
        (
            "elastic",
            {"elasticgpu.io/container-worker": "0,3", "elasticgpu.io/container-init": "2"},
            "elasticgpu.io/assumed",
        ),
    ],
)
def test_a_bound_pod_has_what_its_agent_reads_and_no_container_without_a_card_has_one(
    name: str, annotations: Json, assumed: str
) -> None:
    dialect = BY_NAME[name]
    request = parse(pod(of_resources({dialect.resources[0]: "50"}, "worker"))).request
    assert request is not None

    written = dialect.at_binding(PlacedRequest(request, TWO, "node-a", 7, ("plain", "worker")))

    assert written == {**annotations, assumed: "true"}
    assert dialect.labels_at_binding == {assumed: "true"}
    assert dialect.shown_by_plugin
    assert not dialect.limited_by_mps
