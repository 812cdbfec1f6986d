"""Waiting for a fact, never for a time."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from deploy.local.limits import LONGEST_S

Seen = TypeVar("Seen")


def pause_s(begun: float, look_s: float = 0.0) -> float:
    """How long to wait, in seconds, before the next look for what is awaited since ``begun``: a twentieth of
    the wait, up to a tenth of a second. Most looks ask a server; a hundred a second keep a processor busy.
    A look that starts a process takes longer, ``look_s``; the pause after it is twice that, up to a second.
    """
    return max(min(0.1, max(0.01, (time.monotonic() - begun) / 20)), min(1.0, 2 * look_s))


def eventually(condition: Callable[[], Seen | None], what: object = "") -> Seen:
    """Wait until `condition()` is true, and return its value. Fails after `LONGEST_S`,
    with `what` was awaited (or with what it returns, if it can be called) and the last value."""
    begun = looked = time.monotonic()
    while not (seen := condition()):
        now = time.monotonic()
        if now - begun > LONGEST_S:
            awaited = what() if callable(what) else what
            raise AssertionError(f"not within {LONGEST_S:.0f} s: {awaited}; last seen: {seen!r}")
        time.sleep(pause_s(begun, now - looked))
        looked = time.monotonic()
    return seen


def seconds_until(condition: Callable[[], object], what: object = "") -> float:
    """Wait like `eventually`; how long it took."""
    begun = time.monotonic()
    eventually(condition, what)
    return time.monotonic() - begun


def at_once(call: Callable[[], Seen], times: int = 12) -> list[Seen]:
    """The results of calls that are under way together. For each the API server has a connection of its own
    to a webhook, so both workers are asked; calls one after another may all reach the same one."""
    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(lambda _: call(), range(times)))
