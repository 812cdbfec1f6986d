"""The mistakes of a budget entry, collected while the rest of it is read: all are reported at once."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
UNKNOWN_FIELD = "no such field"


@dataclass(frozen=True, slots=True)
class EntryError:
    """One mistake of an entry."""

    key: str
    line: int  # within the entry, from 1
    field: str  # "": the entry as a whole
    problem: str
    allowed: str
    config_map: str = ""  # the ConfigMap to correct, if it is not the one whose entry is effective
    others: tuple["EntryError", ...] = ()  # the entry's further mistakes, in the order of their lines

    def each(self) -> tuple["EntryError", ...]:
        """All mistakes of the entry, as errors of their own."""
        return (replace(self, others=()), *self.others)

    def sentence(self) -> str:
        """One line: where, what, and what is allowed."""
        where = f"{self.key}, line {self.line}" + (f", {self.field}" if self.field else "")
        text = f"{where}: {self.problem}; allowed: {self.allowed}"
        # YAML can express any character, but databases and JSON do not accept all of them
        return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


class BadEntryError(ValueError):
    """One mistake, while it is not known of which entry."""

    def __init__(self, line: int, field: str, problem: str, allowed: str) -> None:
        super().__init__(problem)
        self.line, self.field, self.problem, self.allowed = line, field, problem, allowed

    def of(self, key: str) -> EntryError:
        """The mistake as that of the entry ``key``."""
        return EntryError(key, self.line, self.field, self.problem, self.allowed)


class Mistakes:
    """The mistakes found so far, while the rest of an entry is read."""

    def __init__(self) -> None:
        self.found: list[BadEntryError] = []

    def tried(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What ``read`` returns; None, and its mistake noted, if it raises one."""
        try:
            return read(*args, **kwargs)
        except BadEntryError as bad:
            self.found.append(bad)
            return None


def unknown_field(line: int, field: str, name: str, known: tuple[str, ...], home: str = "") -> BadEntryError:
    """The mistake of a field, ``name`` in the mapping, that does not exist. ``home``: the entries that have a
    field of this name."""
    meant = meant_field(name, known)
    problem = f"{UNKNOWN_FIELD}; did you mean {meant}?" if meant else UNKNOWN_FIELD
    if home:
        problem = f"{UNKNOWN_FIELD}; it is a field of {home}"
    if name == "namespaces" and "group" in known:
        problem = f"{UNKNOWN_FIELD}; a namespace joins a group by the field group in its own entry"
    return BadEntryError(line, field[:80], problem, ", ".join(known))


def meant_field(name: str, known: tuple[str, ...]) -> str:
    """The field that a mistyped name resembles most; "" if it resembles none."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name[:80].lower(), by_lower, n=1, cutoff=0.75)
    return by_lower[found[0]] if found else ""
