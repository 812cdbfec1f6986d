"""RFC 6902 operations, written directly."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from timekeeper.core.json_values import Json, mapping

Operation = Mapping[str, Any]


def add(path: str, value: object) -> Operation:
    """Adds or overwrites a member, or inserts into an array before the index at the path's end."""
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: object) -> Operation:
    """Replaces the value at the path."""
    return {"op": "replace", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Removes the value at the path. For an absent value the API server answers 500, even under Ignore."""
    return {"op": "remove", "path": path}


def escaped(name: str) -> str:
    """A member's name as a part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def merged(parent: Json, path: str, member: str, values: Mapping[str, str]) -> list[Operation]:
    """Gives the map ``parent[member]`` these values; creates the map where there is none."""
    present = mapping(parent.get(member))
    if not present:
        return [add(f"{path}/{member}", dict(values))] if values else []
    return [
        add(f"{path}/{member}/{escaped(key)}", value)
        for key, value in values.items()
        if present.get(key) != value
    ]


def patched(whole: Json, operations: Iterable[Operation]) -> dict[str, Any]:
    """A copy with the operations applied, which shares what they do not touch. Raises KeyError, IndexError or
    ValueError where one does not apply, which would be a defect."""
    result: dict[str, Any] = dict(whole)
    for operation in operations:
        *way, last = (each.replace("~1", "/").replace("~0", "~") for each in operation["path"].split("/")[1:])
        parent: Any = result
        for step in way:
            place: Any = int(step) if isinstance(parent, list) else step
            parent[place] = copy.copy(parent[place])
            parent = parent[place]
        _apply(operation, parent, last)
    return result


def _apply(operation: Operation, parent: Any, last: str) -> None:
    place: Any = last
    if isinstance(parent, list):
        place = len(parent) if last == "-" else int(last)
    if operation["op"] == "remove":
        del parent[place]
    elif operation["op"] == "add" and isinstance(parent, list):
        parent.insert(place, operation["value"])
    else:
        parent[place] = operation["value"]
