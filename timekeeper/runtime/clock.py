"""The clocks of the timekeeper's processes; everything else is told the time."""

import time


def now_ms() -> int:
    """Milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds since some moment, by a clock that nobody sets."""
    return time.monotonic_ns() // 1_000_000
