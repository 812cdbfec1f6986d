"""Reading JSON of unknown shape: every helper returns an empty value instead of raising."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

Json = Mapping[str, Any]
T = TypeVar("T")


def mapping(value: object) -> Json:
    """The value if it is a JSON object, else an empty one."""
    if type(value) is dict:  # nearly always; the check below costs ten times as much
        return value
    return value if value is not None and isinstance(value, Mapping) else {}


def sequence(value: object) -> list[Any]:
    """The value if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def decoded(text: str, **hooks: Any) -> Any:
    """The JSON in an annotation. Raises ValueError, also for what is nested too deeply and for a lone
    surrogate, which no database takes."""
    try:
        value = json.loads(text, **hooks)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def is_small(part: object, most: int) -> bool:
    """Whether a part of an object has about this number of characters of JSON at most. What is read of it
    takes up to forty times as much memory."""
    return len(str(part)) <= most


def shared(known: "WeakValueDictionary[int, T]", value: T) -> T:
    """The equal value that is kept already, or this one: many pods are made from one template."""
    found = known.setdefault(hash(value), value)
    return found if found == value else value


def annotations_of(item: Json) -> Json:
    """The annotations of a Kubernetes object, empty if there are none."""
    return mapping(mapping(item.get("metadata")).get("annotations"))
