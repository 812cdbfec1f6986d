"""RFC 6902 operations, written directly."""

from collections.abc import Mapping
from typing import Any

from timekeeper.core.json_values import Json, mapping

Operation = Mapping[str, Any]


def add(path: str, value: object) -> Operation:
    """Adds a member, overwrites it where it is there, or inserts into an array before the index that the path
    ends in."""
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: object) -> Operation:
    """Replaces what stands at the path."""
    return {"op": "replace", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Removes what stands at the path; a patch that removes what is absent is a 500, even under Ignore."""
    return {"op": "remove", "path": path}


def escaped(name: str) -> str:
    """A member's name as a part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def merged(parent: Json, path: str, member: str, values: Mapping[str, str]) -> list[Operation]:
    """Gives the map ``parent[member]`` these values, making the map where there is none."""
    present = mapping(parent.get(member))
    if not present:
        return [add(f"{path}/{member}", dict(values))] if values else []
    return [
        add(f"{path}/{member}/{escaped(key)}", value)
        for key, value in values.items()
        if present.get(key) != value
    ]
