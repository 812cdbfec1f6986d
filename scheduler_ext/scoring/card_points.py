"""How good each card is by the weighted points of its figures, for the policy `load`.

Each figure gives a card up to 1,000 points. Utilisation counts as what is left of 100 %, power as what is
below the card of the cluster that draws most, every other figure by its part of the cluster's largest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_ext.scoring.load import LoadByCard
from timekeeper.core.request.cards import is_like
from timekeeper.core.values import Card

BUSY, ENCODER, DECODER = "busy", "encoder", "decoder"  # per cent of its time in use
FREE_MEMORY, POWER = "free-memory", "power"  # MiB, watts
USED_MEMORY = "used-memory"  # MiB; gives FREE_MEMORY where that is not measured
MEMORY = "memory"  # MiB
SMS, ENCODERS, DECODERS, BANDWIDTH = "sms", "encoders", "decoders", "bandwidth"  # numbers, and GB/s

MODEL_FIGURES = (SMS, ENCODERS, DECODERS, BANDWIDTH)
WEIGHTS = (BUSY, FREE_MEMORY, ENCODER, DECODER, POWER, MEMORY, *MODEL_FIGURES)

POINTS = 1000
STEP = 100  # cards are compared to the nearest tenth, so that few measurements invalidate cached answers

_PERCENT = frozenset((BUSY, ENCODER, DECODER))

Figures = Mapping[str, int]
"""What is known of one card, by the names above."""

Samples = Mapping[str, Figures]
"""The figures measured, by the card's UUID or its `place`."""

ModelFigures = Sequence[tuple[str, Figures]]
"""For a pattern of a model's name (`is_like`) the figures of its cards; the first that matches counts."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The weight of each figure, and the figures of models."""

    weights: tuple[tuple[str, int], ...] = ((BUSY, 1),)
    models: ModelFigures = ()


def place(node: str, index: int) -> str:
    """What names a card in `Samples` whose UUID its node plugin does not tell."""
    return f"{node}/{index}"


def loads(samples: Samples, cards: Iterable[tuple[str, Card]], scale: Scale) -> LoadByCard:
    """How little each measured card is to be preferred, from 0 to `POINTS`; ``cards`` with their nodes. A
    figure that a card lacks gives it no points."""
    known: dict[str, Figures] = {}
    for node, card in cards:
        measured, key = samples.get(card.uuid), card.uuid
        if measured is None:
            measured, key = samples.get(place(node, card.index)), f"{node}/{card.uuid}"
        if measured is not None:
            known[key] = _figures(card, measured, scale)
    largest = {
        name: max((each.get(name, 0) for each in known.values()), default=0) for name, _ in scale.weights
    }
    total = sum(weight for _, weight in scale.weights)
    return {key: _rounded(POINTS - _points(each, largest, scale) // total) for key, each in known.items()}


def _figures(card: Card, measured: Figures, scale: Scale) -> Figures:
    of_model = next((each for pattern, each in scale.models if is_like(pattern, card.model)), {})
    found = {MEMORY: card.memory_mib, **of_model, **measured}
    if FREE_MEMORY not in found and USED_MEMORY in found:
        found[FREE_MEMORY] = max(0, card.memory_mib - found[USED_MEMORY])
    return found


def _points(figures: Figures, largest: Figures, scale: Scale) -> int:
    return sum(weight * _of(name, figures.get(name), largest[name]) for name, weight in scale.weights)


def _of(name: str, figure: int | None, largest: int) -> int:
    if figure is None:
        return 0
    if name in _PERCENT:
        return POINTS - 10 * figure
    part = POINTS * figure // largest if largest else 0
    return POINTS - part if name == POWER else part


def _rounded(load: int) -> int:
    return (load + STEP // 2) // STEP * STEP
