"""Selectors that match labels of objects (apimachinery's LabelSelector)."""

from collections.abc import Mapping
from dataclasses import dataclass

from timekeeper.core.json_values import Json, mapping, sequence


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
