"""Reads the API server's JSON and drops the metadata that the agent does not use.

A pod's author chooses its annotations and labels: 46,000 short ones fit into an object and take 11 MiB as
Python values. So each object is trimmed as soon as it is read, and the items of a list are decoded one by
one.
"""

from __future__ import annotations

import json

from sidecar.node.state.api_objects import DESCRIPTIONS, DEVICES
from sidecar.node.state.node_patch import HOLDERS, INVENTORY
from timekeeper.edge.list_watch import INITIAL_EVENTS_END
from timekeeper.edge.mended_json import mended, mending
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_ANNOTATIONS = (DEVICES, INVENTORY, HOLDERS, INITIAL_EVENTS_END)
_DROPPED = ("labels", "managedFields", "ownerReferences", "finalizers")
_ITEMS = '"items":['  # as the API server writes a list: no blanks, its own metadata first


def loads(text: bytes) -> Any:
    """The decoded JSON with trimmed metadata, of the mended text where it is refused, or may have a
    lone surrogate. Raises ValueError."""
    return _mending(mended(text) if b"\\ud" in text or b"\\uD" in text else text)


def _decoded(text: bytes) -> Any:
    whole = text.decode()
    head, items, rest = whole.partition(_ITEMS)
    if not items:
        return _DECODER.decode(whole)
    del whole
    try:
        found = _DECODER.decode(f"{head}{items}]}}")
        found["items"] = _items(rest)
    except (ValueError, TypeError):
        return _DECODER.decode(text.decode())  # no list, or one in another format
    return found


def _items(rest: str) -> list[Any]:
    """The items up to the end of the list, which ends the text too. Each is decoded by a call of its own, for
    a call holds the names of all members until it ends."""
    found: list[Any] = []
    at = 0
    while not rest.startswith("]", at):
        each, at = _DECODER.raw_decode(rest, at)
        found.append(each)
        at += rest.startswith(",", at)
    if rest[at:].strip() != "]}":
        raise ValueError("more after the items")
    return found


def _trimmed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    for name in _DROPPED:
        found.pop(name, None)
    annotations = found.get("annotations")
    if isinstance(annotations, dict):
        there = {name: "" for name in DESCRIPTIONS if name in annotations}
        found["annotations"] = there | {
            name: annotations[name] for name in _ANNOTATIONS if name in annotations
        }
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_trimmed)
_mending = mending(_decoded)
