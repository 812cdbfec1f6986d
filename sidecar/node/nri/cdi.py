"""Which CDI specification names which card.

Specifications are the files ``*.yaml`` and ``*.json`` of the runtime's folders (SPEC.md of
cncf-tags/container-device-interface). NVIDIA's tools name a card by its UUID, by its index, or both.
"""

from __future__ import annotations

import glob
import os

import yaml

from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

MAX_BYTES = 1 << 20
_VENDOR = "nvidia.com"
_CLASSES = ("gpu", "mig")


class Specifications:
    """The folders' specifications. A file is read again when it changes."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = tuple(folders)
        self._read: dict[str, tuple[tuple[int, int], dict[str, tuple[str, ...]]]] = {}
        self.errors: tuple[str, ...] = ()  # of the last call, by file

    def names(self, card_paths: Mapping[str, str]) -> dict[str, str]:
        """By UUID the device's name. ``card_paths``: by UUID the path of the card's device node, by which a
        card is found that no specification names by its UUID."""
        devices, errors = dict[str, tuple[str, ...]](), list[str]()
        for path in sorted(path for folder in self._folders for path in _files(folder)):
            try:
                stat = os.stat(path)
                version = (stat.st_mtime_ns, stat.st_size)
                if self._read.get(path, ((0, 0), {}))[0] != version:
                    self._read[path] = (version, _devices(path))
                devices |= self._read[path][1]
            except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
                reason = error.strerror if isinstance(error, OSError) else type(error).__name__
                errors.append(f"{path}: {reason}")
        self.errors = tuple(errors)
        by_path = {paths[0]: name for name, paths in devices.items() if len(paths) == 1}
        found = {uuid: by_path[path] for uuid, path in card_paths.items() if path in by_path}
        return found | {name.rpartition("=")[2]: name for name in devices if _names_a_uuid(name)}


def _files(folder: str) -> list[str]:
    return [path for ending in ("json", "yaml") for path in glob.glob(f"{glob.escape(folder)}/*.{ending}")]


def _names_a_uuid(name: str) -> bool:
    return name.rpartition("=")[2].startswith(("GPU-", "MIG-"))


def _devices(path: str) -> dict[str, tuple[str, ...]]:
    """By full name the cards' device nodes of each of NVIDIA's devices."""
    with open(path, "rb") as file:
        whole = yaml.safe_load(file.read(MAX_BYTES))
    if not isinstance(whole, dict) or not isinstance(whole.get("kind"), str):
        raise ValueError("no specification")
    vendor, _, kind = whole["kind"].partition("/")
    if kind not in _CLASSES or not (vendor == _VENDOR or vendor.endswith("." + _VENDOR)):
        return {}
    return {
        f"{whole['kind']}={each['name']}": tuple(_nodes(each))
        for each in whole.get("devices") or ()
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }


def _nodes(device: Mapping[str, Any]) -> Iterator[str]:
    edits = device.get("containerEdits")
    for node in (edits.get("deviceNodes") if isinstance(edits, dict) else None) or ():
        path = node.get("path") if isinstance(node, dict) else None
        if isinstance(path, str) and path.startswith("/dev/nvidia") and path[11:].isdigit():
            yield path
