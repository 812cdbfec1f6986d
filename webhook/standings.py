"""The timekeeper's table of standings: decoding it, and what one worker has counted that it may not know yet,
so that a burst of pods cannot exceed a budget before the next table. Pure.

Each worker counts by itself: with W workers a namespace can exceed its remaining budget W times, each time by
less than one pod. The counts are in memory only and end with the worker.
"""

from collections import OrderedDict

import orjson

from timekeeper.core import standings
from timekeeper.core.admission.table import StandingsTable, read_entry, read_settings

SETTLES_MS = 2_000  # by then a tick knows a pod that was counted
LONGEST_MS = 30_000  # a pod is counted where no table says more

Sums = tuple[int, int]  # of what pods cost, and of what they take of their namespace's floor

_NOTHING = (0, 0)


def decode(body: bytes, etag: str, now_ms: int) -> StandingsTable:
    """The table in a 200's body. Raises `standings.UndecodableStandingsError`."""
    return standings.decode(orjson.loads, body, etag, now_ms, read_settings, read_entry)


class AdmissionCounts:
    """Pods of the last seconds, and their sums by namespace. For one thread at a time."""

    def __init__(self) -> None:
        # by namespace and name, the latest last: the moment and both amounts
        self._counts: OrderedDict[tuple[str, str | int], tuple[int, int, int]] = OrderedDict()
        self._sums: dict[str, Sums] = {}

    def add(self, namespace: str, name: str | int, cost: int, takes: int, now_ms: int) -> None:
        """Counts a pod; a name that is counted already, once with the larger amounts."""
        _, had_cost, had_takes = self._counts.pop((namespace, name), (0, 0, 0))
        cost, takes = max(cost, had_cost), max(takes, had_takes)
        self._counts[namespace, name] = now_ms, cost, takes
        self._grow(namespace, cost - had_cost, takes - had_takes)

    def spent(self, namespace: str, name: str = "") -> Sums:
        """The namespace's sums, without the pod of this name."""
        cost, takes = self._sums.get(namespace, _NOTHING)
        _, own_cost, own_takes = self._counts.get((namespace, name), (0, 0, 0))
        return cost - own_cost, takes - own_takes

    def forget(self, until_ms: int) -> None:
        """Removes the counts of all namespaces up to a moment, so that memory does not grow with their
        number."""
        while self._counts:
            key = next(iter(self._counts))
            counted_ms, cost, takes = self._counts[key]
            if counted_ms > until_ms:
                return
            del self._counts[key]
            self._grow(key[0], -cost, -takes)

    def _grow(self, namespace: str, cost: int, takes: int) -> None:
        had_cost, had_takes = self._sums.pop(namespace, _NOTHING)
        if (sums := (had_cost + cost, had_takes + takes)) != _NOTHING:
            self._sums[namespace] = sums


class WorkerCounts:
    """What one worker has counted: the calls of /mutate without and with Bursar's marks, which are never
    added, and by name what /validate admitted."""

    def __init__(self) -> None:
        self.plain, self.marked, self.admitted = AdmissionCounts(), AdmissionCounts(), AdmissionCounts()
        self._table: StandingsTable | None = None

    def forget(self, table: StandingsTable | None, now_ms: int) -> None:
        """Removes what the table knows, and what is older than LONGEST_MS.

        By our clock the tick that a table names was at the latest when it was read, and as long after the
        reading of the one before as their ticks are apart. A table that is only confirmed names no later
        tick.
        """
        until_ms, before = now_ms - LONGEST_MS, self._table
        if table is not None and (before is None or table.read_ms != before.read_ms):
            if before is not None:
                apart_ms = table.generated_ms - before.generated_ms
                until_ms = max(until_ms, min(table.read_ms, before.read_ms + apart_ms) - SETTLES_MS)
            self._table = table
        for counts in (self.plain, self.marked, self.admitted):
            counts.forget(until_ms)
