"""The clocks of a process. Code that decides takes the time as an argument."""

import time


def now_ms() -> int:
    """Milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since an arbitrary moment, by a clock that is never set."""
    return time.monotonic_ns() // 1_000_000


def moment(at_ms: int) -> str:
    """This time in milliseconds since 1970 by RFC 3339, in UTC, without the Z."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at_ms // 1000))}.{at_ms % 1000:03}"
