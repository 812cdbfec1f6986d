"""The clocks of a process. Code that decides takes the time as an argument."""

import time


def now_ms() -> int:
    """Milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since an arbitrary moment, by a clock that is never set."""
    return time.monotonic_ns() // 1_000_000
