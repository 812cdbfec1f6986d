"""Annotations that list names with commas."""

from timekeeper.core.json_values import Json
from timekeeper.core.violation import Violation, shown

MAX_NAMES = 64  # each is compared with every card of every node
LONGEST_NAME = 128
_MAX_CHARACTERS = MAX_NAMES * (LONGEST_NAME + 2)  # with a comma and a blank each


def listed(annotations: Json, name: str) -> tuple[str, ...]:
    """The names in an annotation that lists names with commas, without repetitions; empty if it is absent or
    empty."""
    return tuple(dict.fromkeys(names_in(annotations, name)))


def excess(annotations: Json, name: str) -> str:
    """Which limit a list of names exceeds, "" if none. No other rule reads the names then."""
    value = annotations.get(name)
    if isinstance(value, str) and len(value) > _MAX_CHARACTERS:
        return f"it has {len(value)} characters"
    listed_names = names_in(annotations, name)
    if len(listed_names) > MAX_NAMES:
        return f"it lists {len(listed_names)} names"
    longest = max(map(len, listed_names), default=0)
    return f"it lists a name of {longest} characters" if longest > LONGEST_NAME else ""


def names_in(annotations: Json, name: str) -> list[str]:
    """The names in such an annotation, with repetitions."""
    value = annotations.get(name)
    return [part for each in value.split(",") if (part := each.strip())] if isinstance(value, str) else []


def too_long(annotations: Json, name: str, example: str) -> Violation | None:
    """The mistake in an annotation that exceeds a limit."""
    problem = excess(annotations, name)
    if not problem:
        return None
    allowed = (
        f"{MAX_NAMES} names at most, of {LONGEST_NAME} characters at most, "
        f"in {_MAX_CHARACTERS} characters altogether"
    )
    path = f"metadata.annotations[{name}]"
    return Violation(
        "long-constraint", path, shown(annotations[name]), problem, allowed, f"{name}: {example}"
    )
