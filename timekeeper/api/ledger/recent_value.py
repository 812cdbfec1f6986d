"""Values that take long to make, kept for callers that accept older ones."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, Thread
from typing import Generic, TypeVar

T = TypeVar("T")
Seat = Callable[[], AbstractContextManager[object]]


class RecentValue(Generic[T]):
    """One per process. ``make`` is called by one thread at a time; ``seconds``: a monotonic clock."""

    def __init__(self, make: Callable[[], T], seconds: Callable[[], float] = time.monotonic) -> None:
        self._make, self._seconds = make, seconds
        self._lock, self._state = Lock(), Lock()
        self._made: tuple[float, T] | None = None
        self._is_renewing = False

    def get(self, oldest_ms: int, seat: Seat = nullcontext) -> T:
        """A value that is not older; 0: a new one. One that is older than half of that is made again
        meanwhile, so that frequent callers never wait. ``seat``: what a caller takes to make the value or to
        wait for it."""
        known = self._known(oldest_ms)
        if known is None:
            with seat(), self._lock:
                known = self._known(oldest_ms) or self._renew()
        age_s, value = self._seconds() - known[0], known[1]
        if 2000 * age_s > oldest_ms > 0:
            self._renew_meanwhile(seat)
        return value

    def _known(self, oldest_ms: int) -> tuple[float, T] | None:
        made = self._made
        return made if made is not None and 1000 * (self._seconds() - made[0]) <= oldest_ms != 0 else None

    def _renew(self) -> tuple[float, T]:
        began = self._seconds()
        self._made = began, self._make()
        return self._made

    def _renew_meanwhile(self, seat: Seat) -> None:
        with self._state:
            if self._is_renewing:
                return
            self._is_renewing = True
        Thread(target=self._renew_once, args=(seat,), name="recent", daemon=True).start()

    def _renew_once(self, seat: Seat) -> None:
        try:
            with seat(), self._lock:
                self._renew()
        except Exception:  # noqa: S110 -- the value grows too old, and the next caller gets the error
            pass
        finally:
            self._is_renewing = False


class RecentValues(Generic[T]):
    """A recent value of each key, of the ``most`` keys that were asked for last. May be called by any thread;
    ``seconds``: a monotonic clock."""

    def __init__(self, most: int, seconds: Callable[[], float] = time.monotonic) -> None:
        self._most, self._seconds = most, seconds
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, RecentValue[T]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T], oldest_ms: int, seat: Seat = nullcontext) -> T:
        """As `RecentValue.get`; ``make`` makes every value of this key until it is forgotten. 0 makes a value
        that is not kept."""
        if oldest_ms == 0:
            with seat():
                return make()
        with self._lock:
            value = self._kept.pop(key, None) or RecentValue(make, self._seconds)
            self._kept[key] = value
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value.get(oldest_ms, seat)


def oldest_ms(max_age_s: int | None) -> int:
    """The age that a request's ``Cache-Control: max-age`` accepts, a minute at most; 0 without one."""
    return 1000 * min(max(0, max_age_s or 0), 60)
