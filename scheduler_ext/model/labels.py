"""Labels of objects."""

from functools import lru_cache

from timekeeper.core.json_values import Json, mapping

Packed = str  # KEY=VALUE, separated by commas; keys and values contain neither character


def labels_of(raw: Json) -> Packed:
    """The labels in an object's metadata as one text. Tens of thousands are kept and few are read; replicas
    share one text object."""
    labels = mapping(mapping(raw.get("metadata")).get("labels"))
    return _shared(",".join(sorted(f"{key}={value}" for key, value in labels.items())))


def by_key(labels: Packed) -> dict[str, str]:
    """The labels as a mapping."""
    return dict(each.split("=", 1) for each in labels.split(",") if each)


@lru_cache(maxsize=4096)
def _shared(labels: Packed) -> Packed:
    return labels
