"""Two trees' figures side by side: the ratio of each, and which are more than a tenth worse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

WORSE = 1.1  # a figure that is more than this times the other is named

# operation -> figure -> how much of it a call takes; or {"fault": why it cannot be run there}
Figures = Mapping[str, Mapping[str, float | str]]


class Row(NamedTuple):
    """One figure of an operation in both trees, None where the other tree has none; or why there is no
    figure."""

    operation: str
    figure: str = ""
    here: float = 0
    base: float | None = None
    fault: str = ""

    @property
    def ratio(self) -> float | None:
        """This tree's to the other's; None where it cannot be said."""
        return self.here / self.base if self.base else None

    @property
    def is_worse(self) -> bool:
        """More than a tenth above the other, or not to be had in either tree."""
        return bool(self.fault) or (self.base is not None and self.here > WORSE * self.base)


def rows(here: Figures, base: Figures) -> Iterator[Row]:
    """A row for each figure of each operation of this tree."""
    for operation, found in here.items():
        other = base.get(operation, {"fault": "not counted there"})
        if "fault" in found:
            yield Row(operation, fault=f"cannot be run here: {found['fault']}")
        elif "fault" in other:
            yield Row(operation, fault=f"cannot be run there: {other['fault']}")
        else:
            for figure, value in found.items():
                yield Row(operation, figure, float(value), float(other[figure]) if figure in other else None)


def table(compared: Sequence[Row], base: str) -> str:
    """For people."""
    lines = [f"{'operation':<22}{'figure':<14}{'here':>12}{base[:12]:>14}{'ratio':>8}"]
    for row in compared:
        if row.fault:
            lines.append(f"{row.operation:<22}{row.fault}")
            continue
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        line = f"{row.operation:<22}{row.figure:<14}{_shown(row.here):>12}{_shown(row.base):>14}{ratio:>8}"
        lines.append(line + ("  WORSE" if row.is_worse else ""))
    return "\n".join(lines)


def named(compared: Sequence[Row], base: str) -> str:
    """What is more than a tenth worse, in sentences; that nothing is, where nothing is."""
    found = [_sentence(row, base) for row in compared if row.is_worse]
    return "\n".join(found) or f"nothing is more than a tenth worse than {base}"


def _sentence(row: Row, base: str) -> str:
    if row.fault:
        return f"worse: {row.operation} {row.fault}"
    ratio = "" if row.ratio is None else f" ({row.ratio:.2f} times as much)"
    return f"worse: {row.operation} takes {_shown(row.here)} {row.figure}, {base} {_shown(row.base)}{ratio}"


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}" if value < 1_000 else f"{value:,.0f}"
