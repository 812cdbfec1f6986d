"""What a day's samples prove: memory that grew, files and threads that stayed. Pure. How long calls took is
told and proves nothing: it is also the machine's load.

A series is a list of (seconds since the day began, value).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Series = Sequence[tuple[float, float]]
Span = tuple[float, float]

LEAST_POINTS = 8  # fewer prove nothing about a slope


@dataclass
class Record:
    """All that was measured. ``sizes``, ``files``, ``threads``: by process; ``calls``: milliseconds by kind
    of call; ``faults``: when something was broken or replaced; ``left``: rows that should not be there."""

    length_s: float
    sizes: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    files: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    threads: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    calls: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    faults: list[Span] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)


def within(series: Series, since: float, until: float) -> list[tuple[float, float]]:
    """The points of a span."""
    return [(at, value) for at, value in series if since <= at <= until]


def outside(series: Series, spans: Sequence[Span]) -> list[tuple[float, float]]:
    """The points that are in none of the spans."""
    return [(at, value) for at, value in series if not any(since <= at <= until for since, until in spans)]


def growth(series: Series, since: float, until: float) -> float | None:
    """By how much of its mean a series grows over a span, by least squares; None: too few points."""
    points = within(series, since, until)
    if len(points) < LEAST_POINTS:
        return None
    times, values = zip(*points, strict=True)
    slope = statistics.linear_regression(times, values).slope
    return float(slope * (until - since) / statistics.fmean(values))


def stayed(series: Series, length: float) -> float | None:
    """How much higher the lowest value of the last quarter is than the highest of the second, in which the
    process was replaced or not; None: not known."""
    before = within(series, length / 4, length / 2)
    after = within(series, 3 * length / 4, length)
    if not before or not after:
        return None
    return min(value for _, value in after) - max(value for _, value in before)


def ratio(series: Series, length: float) -> float | None:
    """The median of the last half, as a part of that of the first; None: not known."""
    first, last = within(series, 0, length / 2), within(series, length / 2, length)
    if not first or not last:
        return None
    return statistics.median(v for _, v in last) / statistics.median(v for _, v in first)


def complaints(record: Record, most_growth: float = 0.01) -> list[str]:
    """A sentence for each law that does not hold; what is not known is no proof, and is said too.
    ``most_growth``: of a process's size in the last quarter, as a part of one."""
    end = record.length_s
    found = [f"{table}: {count} rows are left" for table, count in sorted(record.left.items()) if count]
    for name, series in sorted(record.sizes.items()):
        grown = growth(series, 3 * end / 4, end)
        if grown is None:
            found.append(f"{name}: too few samples of its size in the last quarter")
        elif grown > most_growth:
            found.append(f"{name}: its size grew by {grown:.1%} in the last quarter")
    for kind, by_name in (("files", record.files), ("threads", record.threads)):
        found += _stayed(kind, by_name, end)
    return found


def _stayed(kind: str, by_name: Mapping[str, Series], end: float) -> list[str]:
    more = {name: stayed(series, end) for name, series in sorted(by_name.items())}
    unknown = [f"{name}: no samples of its {kind}" for name, count in more.items() if count is None]
    return unknown + [
        f"{name}: {count:.0f} {kind} more than before"
        for name, count in more.items()
        if count is not None and count > 0
    ]
