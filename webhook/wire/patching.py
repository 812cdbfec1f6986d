"""Applies the operations that the webhook writes, as the API server would: add, replace and
remove."""

import copy
from collections.abc import Iterable
from typing import Any

from timekeeper.core.json_values import Json
from webhook.wire.json_patch import Operation


def patched(whole: Json, operations: Iterable[Operation]) -> dict[str, Any]:
    """A copy with the operations applied. Raises KeyError, IndexError or ValueError where one does not apply,
    which would be a defect."""
    result: dict[str, Any] = copy.deepcopy(dict(whole))
    for operation in operations:
        *way, last = (each.replace("~1", "/").replace("~0", "~") for each in operation["path"].split("/")[1:])
        parent: Any = result
        for step in way:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        _apply(operation, parent, last)
    return result


def _apply(operation: Operation, parent: Any, last: str) -> None:
    place: Any = last
    if isinstance(parent, list):
        place = len(parent) if last == "-" else int(last)
    if operation["op"] == "remove":
        del parent[place]
    elif operation["op"] == "add" and isinstance(parent, list):
        parent.insert(place, copy.deepcopy(operation["value"]))
    else:
        parent[place] = copy.deepcopy(operation["value"])
