"""What a model of cards weighs, by the weights of `_settings`."""

from timekeeper.core.dialects.mig import instance_of
from timekeeper.core.request.cards import is_model

Weights = tuple[tuple[str, int], ...]  # (model, thousandths)


def weight_of(model: str, weights: Weights) -> int:
    """The model's weight in thousandths: of the matching names the longest; 1000 if none matches. Of a MIG
    instance it is that of its card times its slices over the card's, rounded up, unless the name has the
    profile."""
    matching = [(len(name), weight) for name, weight in weights if is_model(name, model)]
    weight = max(matching)[1] if matching else 1000
    instance = instance_of(model)
    if instance is None or stated_weight(model, weights) is not None:
        return weight
    profile, card = instance
    return -(-weight * profile.slices // card.slices)


def stated_weight(model: str, weights: Weights) -> int | None:
    """The weight of a MIG instance whose name has the profile, so that it says what the instance costs."""
    instance = instance_of(model)
    if instance is None:
        return None
    matching = [(len(name), name, weight) for name, weight in weights if is_model(name, model)]
    _, name, weight = max(matching, default=(0, "", 0))
    return weight if is_model(f"{instance[0].name}gb", name) else None


def instance_doubt(model: str, weights: Weights) -> str:
    """What of the weight of a model is an assumption; "": nothing."""
    instance = instance_of(model)
    return "" if instance is None or stated_weight(model, weights) is not None else instance[1].doubt
