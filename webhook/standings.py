"""The timekeeper's table of standings: decoding it, and what one worker has admitted since, so that a burst
of pods cannot exceed a budget before the next table. Pure.

Each worker counts its own admissions: with W workers a namespace, or a group, can exceed its remaining budget
W times, each time by less than one pod. The counts are in memory only and end with the worker.
"""

from collections import Counter, deque

import orjson

from timekeeper.core import standings
from timekeeper.core.admission.protection import LIFE_MS
from timekeeper.core.admission.table import StandingsTable, read_entry, read_settings


def decode(body: bytes, etag: str, now_ms: int) -> StandingsTable:
    """The table in a 200's body. Raises `standings.UndecodableStandingsError`."""
    return standings.decode(orjson.loads, body, etag, now_ms, read_settings, read_entry)


class AdmissionBurst:
    """The admissions of the last five seconds, by account: a namespace or the key of a group. For one
    thread."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, str, int]] = deque()
        self._sums: Counter[str] = Counter()

    def add(self, account: str, amount: int, now_ms: int) -> None:
        """Adds a pod that was governed now."""
        self._forget(now_ms)
        self._recent.append((now_ms, account, amount))
        self._sums[account] += amount

    def spent(self, account: str, now_ms: int) -> int:
        """The sum of the last LIFE_MS."""
        self._forget(now_ms)
        return self._sums[account]

    def _forget(self, now_ms: int) -> None:
        """Removes older admissions of all accounts, so that memory does not grow with their number."""
        while self._recent and now_ms - self._recent[0][0] >= LIFE_MS:
            _, account, amount = self._recent.popleft()
            self._sums[account] -= amount
            if not self._sums[account]:
                del self._sums[account]
