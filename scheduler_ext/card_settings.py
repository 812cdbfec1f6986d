"""The settings of cards: the names of their models, where their use is measured, and what each figure counts
for the policy `load`."""

import re
from dataclasses import dataclass

from scheduler_ext.model.node import ModelNames
from scheduler_ext.scoring.card_points import MODEL_FIGURES, WEIGHTS, Figures, ModelFigures
from timekeeper.runtime import prometheus_settings
from timekeeper.runtime.flags import wrong

MAX_WEIGHT = 1_000
MAX_FIGURE = 10**6


def model_names(text: str) -> ModelNames:
    """The value of ``--model-names``."""
    pairs = [
        re.fullmatch(r"\s*([A-Za-z0-9._-]{1,63})=([^=,]{1,128})", each, re.ASCII) for each in text.split(",")
    ]
    found = tuple((pair[1].lower(), pair[2].strip().lower()) for pair in pairs if pair is not None)
    if len(found) < len(pairs) or not all(part.strip(".") for _, part in found):
        raise wrong(text, "NAME=PART, separated by commas, with names as a label's value can have")
    return found


def weights(text: str) -> tuple[tuple[str, int], ...]:
    """The value of ``--load-weights``."""
    found = _amounts(text, ",", "=", MAX_WEIGHT)
    if found is None or not found.keys() <= set(WEIGHTS) or not any(found.values()):
        allowed = f"NAME=NUMBER, separated by commas, with names out of {', '.join(WEIGHTS)}, each once, and"
        raise wrong(text, f"{allowed} numbers from 0 to {MAX_WEIGHT} that are not all 0")
    return tuple((name, weight) for name, weight in found.items() if weight)


def models(text: str) -> ModelFigures:
    """The value of ``--model-figures``."""
    pairs = [each.rpartition("=") for each in text.split(",")]
    found = [(pattern.strip().lower(), _figures(figures)) for pattern, _, figures in pairs]
    models = tuple((pattern, figures) for pattern, figures in found if pattern and figures)
    if len(models) < len(found):
        allowed = "MODEL=NAME:NUMBER;NAME:NUMBER, separated by commas, with names out of"
        raise wrong(text, f"{allowed} {', '.join(MODEL_FIGURES)} and numbers from 0 to {MAX_FIGURE}")
    return models


def _figures(text: str) -> Figures | None:
    found = _amounts(text, ";", ":", MAX_FIGURE)
    return found if found and found.keys() <= set(MODEL_FIGURES) else None


def _amounts(text: str, between: str, sign: str, most: int) -> dict[str, int] | None:
    """The numbers by name; None for a text of another form, or that has a name twice."""
    parts = [
        re.fullmatch(rf"\s*([a-z-]+){sign}([0-9]{{1,9}})\s*", each, re.ASCII) for each in text.split(between)
    ]
    found = {part[1]: int(part[2]) for part in parts if part is not None}
    return found if len(found) == len(parts) and all(each <= most for each in found.values()) else None


@dataclass(frozen=True, slots=True)
class LoadPrometheus(prometheus_settings.PrometheusSettings):
    """Where it is; without one the timekeeper has the use of cards."""

    url: str = prometheus_settings.url_flag(
        "URL of Prometheus, for the use of cards that the policy load goes by; empty: what node agents report"
        " to the timekeeper"
    )
