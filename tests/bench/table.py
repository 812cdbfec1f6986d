"""What the benchmarks of admission tell: the median of each figure over a run's rounds, as a table and as
JSON."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

FIGURES = ("per_s", "p50_ms", "p99_ms", "cpu_us")

# a column's title -> the row's member, and how it is written
Columns = Mapping[str, tuple[str, str]]


def medians(rounds: Sequence[Json], figures: Sequence[str] = FIGURES) -> Json:
    """The median of each figure, rounded."""
    return {name: round(statistics.median(each[name] for each in rounds), 2) for name in figures}


def tell(
    rows: Sequence[Json], columns: Columns, memory: Mapping[str, Sequence[float]], file: Path | None
) -> None:
    """Prints the table and what memory each webhook's processes hold (MiB), and writes both to the file."""
    lines = [list(columns), *([format(row[name], form) for name, form in columns.values()] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print("memory (PSS, MiB): " + ", ".join(f"{name} {figures}" for name, figures in memory.items()))
    if file:
        file.write_text(json.dumps({"rows": rows, "pss_mib": memory}, indent=1))
