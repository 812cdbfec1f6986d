"""Asks the timekeeper for the standings each second, so that no decision waits for it."""

import threading
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from scheduler_ext.clients.asking import FAILURES, Asking
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.model.standing_table import Table, decode, standings_at, still_good
from scheduler_ext.settings import Timekeeper
from timekeeper.runtime.log import Log

PATH = "/v1/standings"
POLL_EVERY_S = 1.0


class _Said(NamedTuple):
    """What a table says, and until when it does."""

    table: Table | None
    standings: NamespaceStandings
    until_ms: float


class Poller:
    """Polls ``GET /v1/standings`` and holds the last good table, whatever happens to the timekeeper.

    ``now_ms``: a monotonic clock; ``polled`` is told of each poll: ``heard`` or ``failed``, and the table's
    age in seconds, -1 before the first.
    """

    def __init__(
        self,
        timekeeper: Timekeeper,
        now_ms: Callable[[], int],
        log: Log,
        polled: Callable[[str, float], None],
    ) -> None:
        self._asking = Asking(timekeeper, PATH)
        self._stale_after_ms = timekeeper.stale_after_ms
        self._now_ms, self._log, self._polled = now_ms, log, polled
        self._table: Table | None = None
        self._said = _Said(None, UNHEARD, inf)
        self._aging = threading.Lock()
        self._last_trouble: str | None = None

    def standings(self) -> NamespaceStandings:
        """What the last good table says now, however long a poll takes; the same object while that is the
        same."""
        said = self._said
        if said.table is self._table and self._now_ms() < said.until_ms:
            return said.standings
        with self._aging:
            table, now_ms, stale_ms = self._table, self._now_ms(), self._stale_after_ms
            says = standings_at(table, now_ms, stale_ms)
            if says == self._said.standings:
                says = self._said.standings
            self._said = _Said(table, says, _until_ms(table, now_ms, stale_ms))
            return says

    def run(self, stop: threading.Event) -> None:
        """Polls until ``stop``."""
        while not stop.is_set():
            self.poll()
            stop.wait(POLL_EVERY_S)
        self.close()

    def close(self) -> None:
        """Lets go of the connection."""
        self._asking.close()

    def poll(self) -> None:
        """Asks once. A failure leaves the table as it is, which then ages."""
        try:
            trouble = ""
            self._table = self._ask()
        except FAILURES as error:
            trouble = f"{type(error).__name__}: {error}"
        if trouble != self._last_trouble:
            if trouble:
                self._log("standings-unheard", level="warning", error=trouble)
            else:
                self._log("standings-heard")
        self._last_trouble = trouble
        age_s = -1.0 if self._table is None else (self._now_ms() - self._table.heard_ms) / 1000
        self._polled("failed" if trouble else "heard", age_s)

    def _ask(self) -> Table:
        """Raises one of `FAILURES`; UndecodableTableError is a ValueError."""
        known = self._table
        reply = self._asking.get(known.etag if known is not None else "")
        if known is not None and not reply.is_new:
            return still_good(known, self._now_ms())
        return decode(reply.body, reply.etag, self._now_ms())


def _until_ms(table: Table | None, now_ms: int, stale_after_ms: int) -> float:
    """When what the table says may change by the clock alone: as it gets stale, at each end of an entry."""
    if table is None:
        return inf
    entries = (table.default, *table.namespaces.values())
    ahead_ms = table.read_ms - table.generated_ms
    ends = (each.valid_until_ms + ahead_ms for each in entries if each.valid_until_ms is not None)
    return min((at for at in (table.heard_ms + stale_after_ms + 1, *ends) if at > now_ms), default=inf)
