"""Answers that are in work: one of a kind at a time, shared by the requests that wait for it, and no more
bytes than the process has memory for."""

import ctypes
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Condition, Thread

from flask import Response

from timekeeper.runtime.http.problem_details import unavailable

# While it is made, a byte of an answer takes about ten of objects. Of the manifest's 1 GiB the settler and
# two workers hold half at rest, which leaves 256 MiB to each worker.
MOST_BYTES = 24 * 1024 * 1024
WAIT_S = 20.0

# Each of glibc's arenas, and so each thread, keeps what it once had: two thirds of a burst. After an answer
# of at least `_LARGE` bytes it is given back `_TRIMS` times.
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
_LARGE, _TRIMS, _TRIM_EVERY_S = 1024 * 1024, 10, 2.0

_Whole = tuple[bytes, int, list[tuple[str, str]]]


class SharedAnswers:
    """One per process. Nothing is kept: a request that comes after an answer was begun waits for the next."""

    def __init__(self, most_bytes: int = MOST_BYTES, wait_s: float = WAIT_S) -> None:
        self._most_bytes, self._wait_s = most_bytes, wait_s
        self._changed = Condition()
        self._awaited: dict[Hashable, Future[_Whole]] = {}  # not begun
        self._making: set[Hashable] = set()
        self._largest: dict[Hashable, int] = {}  # by kind, in bytes
        self._bytes = 0  # of those that are made
        self._trims = 0  # how many are still to come

    def get(self, key: Hashable, kind: Hashable, make: Callable[[], Response]) -> Response:
        """The answer of this key. ``kind``: of answers that are about as large. Raises what ``make`` raises,
        and a Problem (503) where too much is in work."""
        with self._changed:
            awaited = self._awaited.get(key)
            mine = awaited or self._awaited.setdefault(key, Future())
        if awaited is None:
            try:
                mine.set_result(self._made(key, kind, make))
            except BaseException as error:
                mine.set_exception(error)
        return Response(*mine.result())

    def _made(self, key: Hashable, kind: Hashable, make: Callable[[], Response]) -> _Whole:
        def bytes_of() -> int:  # half of all where it is unknown: small answers pass beside it
            return min(self._largest.get(kind, self._most_bytes), self._most_bytes // 2)

        with self._changed:
            is_time = self._changed.wait_for(
                lambda: key not in self._making and self._bytes + bytes_of() <= self._most_bytes, self._wait_s
            )
            del self._awaited[key]
            if not is_time:
                raise unavailable("too many large answers are being made; ask for less, or retry later")
            taken = bytes_of()
            self._making.add(key)
            self._bytes += taken
        body = b""
        try:
            made = make()
            body = made.get_data()
            return body, made.status_code, [*made.headers]
        finally:
            with self._changed:
                self._largest[kind] = max(len(body), self._largest.get(kind, 0))
                self._making.remove(key)
                self._bytes -= taken
                self._changed.notify_all()
                if len(body) >= _LARGE:
                    trims, self._trims = self._trims, _TRIMS
                    if trims <= 0:
                        Thread(target=self._give_back, name="trim", daemon=True).start()

    def _give_back(self) -> None:
        """More than once, for a page has what it shows for longer than the answer is in work."""
        while self._trims > 0:
            time.sleep(_TRIM_EVERY_S)
            _TRIM(0)
            with self._changed:
                self._trims -= 1
