"""What one ``nvidia.com/gpu`` of a node is, by the labels of GPU feature discovery: a card, a replica that
shares its time, or a MIG instance. Source: gpu-feature-discovery's labels (`docs/dialects.md`)."""

import re
from collections.abc import Sequence

from timekeeper.core import names
from timekeeper.core.dialects.nvidia_parts import whole_slices
from timekeeper.core.dialects.percent import COUNT_LABEL, MODEL_LABEL
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.quantity import integral
from timekeeper.core.request.cards import is_model
from timekeeper.core.values import WHOLE_MILLI, Card

REPLICAS_LABEL = "nvidia.com/gpu.replicas"
STRATEGY_LABEL = "nvidia.com/mig.strategy"
SLICES_LABEL = "nvidia.com/gpu.slices.gi"

_SHARED = re.compile("-SHARED$")
_INSTANCE = re.compile(r"-MIG-([1-7])g\.([0-9]{1,3})gb[.a-z+-]*$", re.ASCII)


def card_model(product: str) -> str:
    """The card's model by the label `nvidia.com/gpu.product`, which also says how it is divided."""
    return _INSTANCE.sub("", _SHARED.sub("", product))


def card_parts(node: Json) -> int:
    """Which part of a card one `nvidia.com/gpu` of the node is, in thousandths, rounded up; 1000 where no
    label says that it is a part."""
    labels = _labels(node)
    replicas = max(1, integral(labels.get(REPLICAS_LABEL)) or 1)
    slices, whole = _instance(labels)
    return max(1, -(-WHOLE_MILLI * slices // (whole * replicas)))


def _instance(labels: Json) -> tuple[int, int]:
    """The slices of compute of one instance, and of its card; 1 of 1 without the strategy `single`."""
    found = _INSTANCE.search(_SHARED.sub("", str(labels.get(MODEL_LABEL, ""))))
    if labels.get(STRATEGY_LABEL) != "single" or found is None:
        return 1, 1
    slices, whole = int(found[1]), whole_slices(int(found[1]), int(found[2]))
    said = integral(labels.get(SLICES_LABEL)) or slices
    return min(said if said > 0 else slices, whole), whole


def contradiction(node: Json, cards: Sequence[Card]) -> str:
    """Why the labels and the inventory of Bursar's agent cannot both be right; "": they can."""
    labels = _labels(node)
    count, model = integral(labels.get(COUNT_LABEL)), card_model(str(labels.get(MODEL_LABEL, "")))
    is_ours = names.INVENTORY in annotations_of(node)
    if not (is_ours and cards and count and model) or _instance(labels) != (1, 1):
        return ""
    models = sorted({card.model for card in cards})
    if len(cards) == count and any(is_model(each, model) or is_model(model, each) for each in models):
        return ""
    return f"its inventory has {len(cards)} x {', '.join(models)}, its labels say {count} x {model}"


def _labels(node: Json) -> Json:
    return mapping(mapping(node.get("metadata")).get("labels"))
