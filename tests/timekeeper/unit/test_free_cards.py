"""What the map says is free on a node."""

from typing import Any

import pytest

from timekeeper.dashboard.charts import free_sentence, row_sentence


def card(used: int, **more: Any) -> dict[str, Any]:
    return {"used_share_milli": used, "used_memory_mib": used, "healthy": True, "cordoned": False} | more


@pytest.mark.parametrize(
    ("cards", "is_closed", "sentence"),
    [
        ([card(0), card(0), card(250), card(500)], False, "2 cards and 75% of a card"),
        ([card(0)], False, "1 card"),
        ([card(995), card(1000)], False, "none"),
        ([card(0, healthy=False), card(500, cordoned=True)], False, "none"),
        ([card(0)], True, "none"),
        ([], True, "none"),
        ([], False, "unknown"),
    ],
)
def test_whole_cards_and_the_largest_part_of_a_shared_one(
    cards: list[dict[str, Any]], is_closed: bool, sentence: str
) -> None:
    assert free_sentence(cards, is_closed) == sentence


def test_cards_that_only_the_plugin_could_name_are_neither_free_nor_unseen() -> None:
    cards = [card(0)] * 8

    assert [free_sentence(cards, False, held) for held in (2, 8)] == ["6 cards", "none"]
    assert row_sentence(cards, 2) == (
        "0 of 8 cards are in use, 0% of their compute,"
        " 2 of 8 cards are held, and the node's plugin alone knows which"
    )


def test_a_node_without_an_inventory_shows_what_it_offers() -> None:
    assert row_sentence([], 0, "nvidia.com/gpu 8") == "no inventory: nvidia.com/gpu 8"
