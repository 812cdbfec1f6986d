"""Reading JSON of unknown shape: every helper returns an empty value instead of raising."""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


def mapping(value: object) -> Json:
    """The value if it is a JSON object, else an empty one."""
    if type(value) is dict:  # nearly always; the check below costs ten times as much
        return value
    return value if value is not None and isinstance(value, Mapping) else {}


def sequence(value: object) -> list[Any]:
    """The value if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def annotations_of(item: Json) -> Json:
    """The annotations of a Kubernetes object, empty if there are none."""
    return mapping(mapping(item.get("metadata")).get("annotations"))
