"""The mistakes of a budget entry, collected while the rest of it is read: all are reported at once."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class EntryError:
    """One mistake of an entry."""

    key: str
    line: int  # within the entry, from 1
    field: str  # "": the entry as a whole
    problem: str
    allowed: str
    config_map: str = ""  # the ConfigMap to correct, if it is not the one whose entry is effective
    others: tuple["EntryError", ...] = ()  # the entry's further mistakes, in the order of their lines
    is_unknown: bool = False  # the field does not exist

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

    def __init__(
        self, line: int, field: str, problem: str, allowed: str, *, is_unknown: bool = False
    ) -> None:
        super().__init__(problem)
        self.line, self.field, self.problem, self.allowed = line, field, problem, allowed
        self.is_unknown = is_unknown

    def of(self, key: str) -> EntryError:
        """The mistake as that of the entry ``key``."""
        return EntryError(key, self.line, self.field, self.problem, self.allowed, is_unknown=self.is_unknown)


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
    problem = f"no such field; did you mean {meant}?" if meant else "no such field"
    if home:
        problem = f"no such field; it is a field of {home}"
    if name == "namespaces" and "group" in known:
        problem = "no such field; a namespace joins a group by the field group in its own entry"
    return BadEntryError(line, field[:80], problem, ", ".join(known), is_unknown=True)


def meant_field(name: str, known: tuple[str, ...]) -> str:
    """The field that a mistyped name resembles most; "" if it resembles none."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name[:80].lower(), by_lower, n=1, cutoff=0.75)
    return by_lower[found[0]] if found else ""
