"""How much of the searches' time each namespace may take.

kube-scheduler places one pod after another, so a pod that is hard to place keeps all others waiting for as
long as its search lasts. Without a bound per namespace, the pods of one could be searched for without end.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.verbs.fit_cache import CALL_STEPS

MAX_SAVED_MS = 2_000
PART = 5  # of this many milliseconds a namespace may search one
MAX_NAMESPACES = 4096


class SearchShares:
    """The time that each namespace may still search: at most MAX_SAVED_MS, and a fifth of the time that
    passes. A call that begins in time may end later; its namespace then waits for as long as it took."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000) -> None:
        self._now_ms, self._lock = now_ms, threading.Lock()
        # by namespace: PART times the milliseconds that it has left, and the moment at which it had them
        self._saved: OrderedDict[str, tuple[int, int]] = OrderedDict()

    @contextmanager
    def steps_of(self, namespace: str) -> Iterator[Steps]:
        """The steps of one call: CALL_STEPS, or none while the namespace has no time left."""
        began = self._now_ms()
        given = CALL_STEPS if self._take(namespace, 0) > 0 else 0
        steps = Steps(given)
        try:
            yield steps
        finally:
            if steps.left < given:
                self._take(namespace, self._now_ms() - began)

    def _take(self, namespace: str, spent_ms: int) -> int:
        """Takes this time from the namespace. Gives PART times the milliseconds that are left."""
        with self._lock:
            now = self._now_ms()
            saved, before = self._saved.pop(namespace, (PART * MAX_SAVED_MS, now))
            saved = min(PART * MAX_SAVED_MS, saved + now - before) - PART * spent_ms
            self._saved[namespace] = (saved, now)
            if len(self._saved) > MAX_NAMESPACES:
                self._saved.popitem(last=False)
            return saved
