"""Labels of objects, and the selectors that match them (apimachinery's LabelSelector)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from timekeeper.core.json_values import Json, mapping, sequence

Labels = tuple[tuple[str, str], ...]
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


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a selector; ``operator`` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True if the labels satisfy it. An absent key satisfies NotIn."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        return (value is not None) == (self.operator == "Exists")


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must hold. A selector without requirements matches everything."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the labels satisfy every requirement."""
        return all(each.holds(labels) for each in self.requirements)


def read_selector(raw: object) -> Selector | None:
    """None where there is no selector, which matches nothing, or where it has an operator that no API server
    admits."""
    if not isinstance(raw, dict):
        return None
    equal = (
        Requirement(str(key), "In", frozenset({str(value)}))
        for key, value in mapping(raw.get("matchLabels")).items()
    )
    expressions = [_requirement(mapping(each)) for each in sequence(raw.get("matchExpressions"))]
    if any(each.operator not in ("In", "NotIn", "Exists", "DoesNotExist") for each in expressions):
        return None
    return Selector((*equal, *expressions))


def _requirement(raw: Json) -> Requirement:
    values = frozenset(str(value) for value in sequence(raw.get("values")))
    return Requirement(str(raw.get("key", "")), str(raw.get("operator", "")), values)
