"""Which ConfigMaps have budgets, and which entries."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from timekeeper.core import names
from timekeeper.core.budgets.policy import MODE
from timekeeper.core.json_values import Json, mapping

# what kustomize and `generateName` write behind a name
_GENERATED = re.compile(r"-(?=[a-z]*[2-9])[2456789bcdfghjklmnpqrstvwxz]{4,10}$")
_ENDED = re.compile(rf"({'|'.join(names.BUDGET_CONFIG_MAPS)})-.+")


def is_read(config_map: Json) -> bool:
    """Whether Bursar reads it: by its name, or by its label."""
    metadata = mapping(config_map.get("metadata"))
    labelled = mapping(metadata.get("labels")).get(names.BUDGETS_LABEL) == "true"
    return labelled or metadata.get("name") in names.BUDGET_CONFIG_MAPS


def unread_sentences(listed: Iterable[Json]) -> dict[str, str]:
    """Of those with one of Bursar's names and an ending that are not read, by name."""
    unread = (str(mapping(raw.get("metadata")).get("name")) for raw in listed if not is_read(raw))
    known = ", ".join(names.BUDGET_CONFIG_MAPS)
    how = f"give it the label {names.BUDGETS_LABEL}=true, or a name without ending ({known})"
    return {name: f"ConfigMap {name} is not read: {how}" for name in unread if _ENDED.fullmatch(name)}


def entries_of(config_map: Json) -> dict[str, str]:
    """Its entries by key. Values that are not text are left out, because the API server refuses them."""
    data = mapping(config_map.get("data"))
    texts = {str(key): text for key, text in data.items() if isinstance(text, str)}
    if texts and mapping(config_map.get("metadata")).get("name") == names.CLUSTER_MODE:
        return {MODE: "\n".join(f"{key}: {text}" for key, text in texts.items())}
    return texts


def counting_entries(listed: Iterable[Json]) -> dict[str, dict[str, str]]:
    """The entries of those of these ConfigMaps that count, by name."""
    found = {str(raw["metadata"]["name"]): raw for raw in listed if is_read(raw)}
    newest = newest_of({name: str(raw["metadata"].get("creationTimestamp")) for name, raw in found.items()})
    return {name: entries_of(found[name]) for name in newest}


def newest_of(created: Mapping[str, Any]) -> Collection[str]:
    """The names, and of those that differ by a generated ending the newest. ``created``: what sorts them."""
    names_in_order = sorted(created, key=lambda name: (created[name], name))
    return {_GENERATED.sub("-", name): name for name in names_in_order}.values()
