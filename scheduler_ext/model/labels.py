"""Labels of objects."""

from functools import lru_cache

from timekeeper.core.json_values import Json, mapping
from timekeeper.core.kube.selectors import Selector

_LONGEST_SHARED = 1024  # longer ones are rare, and would be kept after their pods
Packed = str  # KEY=VALUE, separated by commas; keys and values contain neither character


def labels_of(raw: Json) -> Packed:
    """The labels in an object's metadata as one text. Tens of thousands are kept and few are read; replicas
    share one text object."""
    labels = mapping(mapping(raw.get("metadata")).get("labels"))
    packed = ",".join(sorted(f"{key}={value}" for key, value in labels.items()))
    return _shared(packed) if len(packed) <= _LONGEST_SHARED else packed


def by_key(labels: Packed) -> dict[str, str]:
    """The labels as a mapping."""
    return dict(each.split("=", 1) for each in labels.split(",") if each)


def selects(selector: Selector | None, labels: Packed) -> bool:
    """Whether the selector matches the labels; None matches nothing. Most texts lack what it asks, which is
    seen without reading them."""
    if selector is None:
        return False
    for needed in selector.requirements:
        if needed.operator == "Exists" and f"{needed.key}=" not in labels:
            return False
        if needed.operator == "In" and not any(f"{needed.key}={value}" in labels for value in needed.values):
            return False
    return selector.matches(by_key(labels))


@lru_cache(maxsize=4096)
def _shared(labels: Packed) -> Packed:
    return labels
