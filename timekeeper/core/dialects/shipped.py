"""Dialects that other packages ship: entry points of the group ``bursar.dialects``, each a `Dialect` or a
sequence of them.

They are loaded once, when the table is first imported, because every role derives its rules from the table.
A dialect that cannot be loaded ends the process with one sentence: without it its pods would bypass every
budget.
"""

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points

from timekeeper.core.dialects.dialect import Dialect

GROUP = "bursar.dialects"


class BrokenDialectError(SystemExit):
    """The text names the entry point, its package and the fault."""


def shipped(built_in: Sequence[Dialect]) -> tuple[Dialect, ...]:
    """The dialects of the installed packages, in the order of their entry points' names. Raises
    BrokenDialectError."""
    found: list[Dialect] = []
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        for dialect in _loaded(point):
            fault = _fault(dialect, (*built_in, *found))
            if fault:
                raise _broken(point, fault)
            found.append(dialect)
    return tuple(found)


def _loaded(point: EntryPoint) -> Iterable[Dialect]:
    try:
        loaded = point.load()
    except Exception as error:
        raise _broken(point, f"it cannot be imported: {type(error).__name__}: {error}") from None
    dialects = (loaded,) if isinstance(loaded, Dialect) else loaded
    if not isinstance(dialects, list | tuple) or not all(isinstance(each, Dialect) for each in dialects):
        raise _broken(point, f"it is neither a Dialect nor a list of them, but {type(loaded).__name__}")
    return dialects


def _fault(dialect: Dialect, others: Sequence[Dialect]) -> str:
    """Why the dialect cannot stand beside the others, "" if it can."""
    if not names_of(dialect):
        return f"dialect {dialect.name} has neither resources nor annotations nor labels"
    if bool(dialect.annotations or dialect.labels) != (dialect.read_pod is not None):
        return f"dialect {dialect.name} has annotations or labels without read_pod, or read_pod without them"
    if dialect.constrain is not None and dialect.reads is None:
        return (
            f"dialect {dialect.name} has constrain without reads, the annotations and labels that it is given"
        )
    for other in others:
        if other.name == dialect.name:
            return f"there is another dialect {dialect.name}"
        both = sorted(names_of(dialect) & names_of(other))
        if both:
            return f"{both[0]} belongs to dialect {other.name}"
    return ""


def names_of(dialect: Dialect) -> set[str]:
    """The names by which a pod is of this dialect."""
    return {*dialect.resources, *dialect.annotations, *dialect.labels}


def _broken(point: EntryPoint, fault: str) -> BrokenDialectError:
    package = point.dist.name if point.dist is not None else "an unknown package"
    return BrokenDialectError(f"bursar: entry point {point.name} ({GROUP}) of {package}: {fault}")
