"""The client of the timekeeper that the settings name; and the poller that asks it for the standings each
second, so that no decision waits for it."""

import threading
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from scheduler_ext.log import Log, LogEvent
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.model.standing_table import Table, decode, standings_at
from scheduler_ext.settings import Timekeeper
from timekeeper.edge.timekeeper_client import TimekeeperClient, TimekeeperPoller

PATH = "/v1/standings"


def client(timekeeper: Timekeeper, path: str) -> TimekeeperClient:
    """For one path; the CA bundle is read before each request."""
    return TimekeeperClient(
        timekeeper.url, path, timekeeper.token_file, lambda: timekeeper.ca.read_text(encoding="ascii")
    )


class _Said(NamedTuple):
    """What a table says, and until when it does."""

    table: Table | None
    standings: NamespaceStandings
    until_ms: float


class Poller(TimekeeperPoller[Table, LogEvent]):
    """Polls ``GET /v1/standings``. See `TimekeeperPoller`."""

    def __init__(
        self,
        timekeeper: Timekeeper,
        now_ms: Callable[[], int],
        log: Log,
        polled: Callable[[str], None],
    ) -> None:
        events: tuple[LogEvent, LogEvent] = "standings-updated", "standings-failed"
        asked = client(timekeeper, PATH)
        super().__init__(asked, decode, Table.confirmed, now_ms, log, events, polled)
        self._stale_after_ms = timekeeper.stale_after_ms
        self._said = _Said(None, UNHEARD, inf)
        self._aging = threading.Lock()

    def standings(self) -> NamespaceStandings:
        """What the last good table says now, however long a poll takes; the same object while that is the
        same."""
        said = self._said
        if said.table is self.value and self._now_ms() < said.until_ms:
            return said.standings
        with self._aging:
            table, now_ms, stale_ms = self.value, self._now_ms(), self._stale_after_ms
            says = standings_at(table, now_ms, stale_ms)
            if says == self._said.standings:
                says = self._said.standings
            self._said = _Said(table, says, _until_ms(table, now_ms, stale_ms))
            return says


def _until_ms(table: Table | None, now_ms: int, stale_after_ms: int) -> float:
    """When what the table says may change by the clock alone: as it gets stale, at each end of an entry."""
    if table is None:
        return inf
    entries = (table.default, *table.namespaces.values())
    ahead_ms = table.read_ms - table.generated_ms
    ends = (each.valid_until_ms + ahead_ms for each in entries if each.valid_until_ms is not None)
    return min((at for at in (table.confirmed_ms + stale_after_ms + 1, *ends) if at > now_ms), default=inf)
