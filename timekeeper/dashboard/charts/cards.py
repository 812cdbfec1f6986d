"""Nodes as rows of cards, and how full the nodes are, as shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timekeeper.core.cluster_map import undescribed_sentence, unnamed_sentence

SIDE, GAP, HEIGHT = 14, 4, 20  # of a card
WHOLE_MILLI = 1_000
_WORDS = ("empty", *(f"up to {10 * at} %" for at in range(1, 11)))

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CardShape:
    """A card: where it is, how high it is filled from below, and its class: fine, full, cordoned, faulty."""

    x: int
    y: float
    fill: float
    kind: str


@dataclass(frozen=True, slots=True)
class FillStep:
    """How many nodes are this full, as a part of the most common step."""

    word: str
    nodes: int
    part: float


def card_row(cards: Sequence[Json]) -> tuple[CardShape, ...]:
    """A node's cards from left to right."""
    return tuple(_shape(at, each) for at, each in enumerate(cards))


def width_of(cards: Sequence[Json]) -> int:
    """Of the row."""
    return max(1, len(cards)) * (SIDE + GAP) - GAP


def row_sentence(cards: Sequence[Json], unnamed: int = 0, undescribed: str = "") -> str:
    """What the row shows. ``unnamed``: cards that are held, of which no name is known; ``undescribed``: what
    the node offers without an inventory."""
    if undescribed:
        return undescribed_sentence(undescribed)
    used = sum(each["used_share_milli"] for each in cards)
    touched = sum(each["used_share_milli"] > 0 or each["used_memory_mib"] > 0 for each in cards)
    faulty = sum(not each["healthy"] for each in cards)
    parts = [f"{touched} of {len(cards)} cards are in use, {_per_cent(used, len(cards))} of their compute"]
    held = unnamed_sentence(unnamed, len(cards))
    return ", ".join([*parts, *([held] if held else []), *([f"{faulty} are unhealthy"] if faulty else [])])


def free_sentence(cards: Sequence[Json], is_closed: bool, unnamed: int = 0) -> str:
    """What new pods can get of a node's compute: whole cards, and the largest part of a shared one; of an
    open node without an inventory nothing is known."""
    if not cards and not is_closed:
        return "unknown"
    usable = [each for each in cards if each["healthy"] and not each["cordoned"] and not is_closed]
    whole = sum(each["used_share_milli"] == 0 and each["used_memory_mib"] == 0 for each in usable) - unnamed
    part = max([0, *(WHOLE_MILLI - each["used_share_milli"] for each in usable if each["used_share_milli"])])
    found = [f"{whole} card{'s' * (whole > 1)}"] if whole > 0 else []
    return " and ".join([*found, *([f"{part // 10}% of a card"] if part >= 10 else [])]) or "none"


def filled(steps: Sequence[int]) -> tuple[FillStep, ...]:
    """The steps of ``filled`` in an answer of ``GET /v1/cluster``."""
    most = max([1, *steps])
    return tuple(
        FillStep(word, count, round(count / most, 3)) for word, count in zip(_WORDS, steps, strict=True)
    )


def _shape(at: int, card: Json) -> CardShape:
    share = card["used_share_milli"] / WHOLE_MILLI
    memory = card["used_memory_mib"] / card["memory_mib"] if card["memory_mib"] else 0
    fill = round(HEIGHT * min(1, max(share, memory)), 1)
    return CardShape(at * (SIDE + GAP), round(HEIGHT - fill, 1), fill, _kind(card))


def _kind(card: Json) -> str:
    if not card["healthy"]:
        return "faulty"
    return "cordoned" if card["cordoned"] else "sound"


def _per_cent(milli: int, cards: int) -> str:
    return f"{milli // (10 * cards)}%" if cards else "0%"
