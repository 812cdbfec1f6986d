"""Reads the API server's JSON and keeps of each object's metadata only what the agent uses.

Who may create a pod chooses its annotations and labels: 46,000 short ones fit into an object and take 11 MiB
as Python's values. So each object is cut as soon as it is read, and those of a list are read one by one.
"""

from __future__ import annotations

import json

from sidecar.node.state.api_objects import DEVICES
from sidecar.node.state.node_patch import HOLDERS, INVENTORY
from sidecar.value import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_READ = (DEVICES, INVENTORY, HOLDERS)
_UNREAD = ("labels", "managedFields", "ownerReferences", "finalizers")
_ITEMS = '"items":['  # as the API server writes a list: without blanks, its own metadata first


def loads(text: bytes) -> Any:
    """What the JSON says, its metadata cut. Raises ValueError."""
    told = text.decode()
    head, items, rest = told.partition(_ITEMS)
    if not items:
        return _DECODER.decode(told)
    del told
    try:
        found = _DECODER.decode(f"{head}{items}]}}")
        found["items"] = _listed(rest)
    except (ValueError, TypeError):
        return _DECODER.decode(text.decode())  # no list, or one that is written in another way
    return found


def _listed(rest: str) -> list[Any]:
    """The objects up to the end of their list, which ends the text too. Each is decoded by a call of its own,
    for a call remembers all names of members until it ends."""
    found: list[Any] = []
    at = 0
    while not rest.startswith("]", at):
        each, at = _DECODER.raw_decode(rest, at)
        found.append(each)
        at += rest.startswith(",", at)
    if rest[at:].strip() != "]}":
        raise ValueError("more after the objects")
    return found


def _cut(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    for name in _UNREAD:
        found.pop(name, None)
    annotations = found.get("annotations")
    if isinstance(annotations, dict):
        found["annotations"] = {name: annotations[name] for name in _READ if name in annotations}
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_cut)
