"""Aliyun's gpushare: what its word means, which cards its nodes have, and what its plugin reads."""

from typing import Any

import pytest

from tests.worlds import of_resources, pod
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.dialect import PlacedRequest
from timekeeper.core.request.inventory import read_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Card, Placement, Slice

Json = dict[str, Any]

MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


def test_its_word_is_memory_of_one_card_that_all_containers_share() -> None:
    one = parse(pod(of_resources({MEMORY: "3"}))).request
    two = parse(
        pod(of_resources({MEMORY: "1"}, "a"), of_resources({}, "b"), of_resources({MEMORY: "2"}, "c"))
    )

    assert one is not None
    assert ([each.ask for each in one.asks], one.same_gpu) == ([Ask(1, 0, 3)], ())
    assert two.request is not None
    assert two.request.same_gpu == ("a", "c")


@pytest.mark.parametrize("amount", ["0", "-3", "0.5", "NaN", "9" * 30])
def test_an_amount_that_it_cannot_count_is_refused_with_the_field(amount: str) -> None:
    (violation,) = parse(pod(of_resources({MEMORY: amount}))).violations

    assert violation.rule == "amount"
    assert violation.path == f"spec.containers[0].resources.limits[{MEMORY}]"


def test_no_pod_requests_the_number_of_cards_of_a_node() -> None:
    (violation,) = parse(pod(of_resources({COUNT: "1"}))).violations

    assert violation.rule == "dialect-not-spoken"


@pytest.mark.parametrize(
    ("capacity", "cards"),
    [
        ({MEMORY: "30", COUNT: "2"}, [("card0", 0, 15), ("card1", 1, 15)]),
        ({MEMORY: "16276", COUNT: "1"}, [("card0", 0, 16276)]),
        ({MEMORY: "30"}, []),
        ({MEMORY: "30", COUNT: "0"}, []),
        ({MEMORY: "1", COUNT: "2"}, []),
    ],
)
def test_a_node_has_as_many_cards_as_it_counts(capacity: Json, cards: list[tuple[str, int, int]]) -> None:
    found = read_cards({"status": {"capacity": capacity}}) or ()

    assert list(found) == [Card(uuid, index, "GPU", units) for uuid, index, units in cards]


def test_a_bound_pod_has_what_its_plugin_reads() -> None:
    request = parse(pod(of_resources({MEMORY: "1"}, "a"), of_resources({MEMORY: "2"}, "b"))).request
    assert request is not None
    placement = Placement((("a", (Slice("card1", 1, 0, 1),)), ("b", (Slice("card1", 1, 0, 2),))))
    cards = tuple(Card(f"card{index}", index, "GPU", 15) for index in range(2))

    written = BY_NAME["gpushare"].at_binding(
        PlacedRequest(request, placement, "node-a", 1_700_000_000_000_000_007, ("a", "b"), (), cards)
    )

    assert written == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000007",
    }


def test_what_it_writes_of_the_pod_is_what_the_pod_has_at_one_time() -> None:
    """An init container ends before the others start; the plugin itself counts the ordinary containers."""
    init = of_resources({MEMORY: "2"}, "first")
    for main, units in (("1", "2"), ("5", "5")):
        request = parse(pod(of_resources({MEMORY: main}), init=[init])).request
        assert request is not None
        placement = Placement(
            (("first", (Slice("card0", 0, 0, 2),)), ("main", (Slice("card0", 0, 0, int(main)),)))
        )

        written = BY_NAME["gpushare"].at_binding(
            PlacedRequest(request, placement, "n", 7, ("main",), ("first",), (Card("card0", 0, "GPU", 15),))
        )

        assert written["ALIYUN_COM_GPU_MEM_POD"] == units
