"""The thread that keeps the table of standings a second old, so that no review waits for the timekeeper."""

import threading
from collections.abc import Callable
from pathlib import Path

from timekeeper.core.admission.table import StandingsTable
from timekeeper.runtime.log import Log
from timekeeper.runtime.timekeeper_client import TimekeeperAnswer, TimekeeperClient, TimekeeperPoller
from webhook.metrics import WebhookMetrics
from webhook.standings.table import decode

PATH = "/v1/standings"


class StandingsPoller(TimekeeperPoller[StandingsTable]):
    """Polls ``GET /v1/standings``. See `TimekeeperPoller` and `TimekeeperClient`."""

    def __init__(
        self,
        url: str,
        token_file: Path,
        ca: Callable[[], str | None],
        now_ms: Callable[[], int],
        log: Log,
        metrics: WebhookMetrics,
    ) -> None:
        client = TimekeeperClient(url, PATH, token_file, ca)
        events = "standings-updated", "standings-failed"
        super().__init__(client, self._table_of, now_ms, log, events, metrics.polled)
        self._ended = threading.Event()

    def table(self) -> StandingsTable | None:
        """The last good table; None before the first."""
        return self.value

    def asked(self) -> bool:
        """True once a poll was attempted, even if it failed."""
        return self.was_polled

    def start(self) -> None:
        """Starts polling; in a worker, after the fork, for threads do not survive one."""
        threading.Thread(target=self.run, args=(self._ended,), name="standings", daemon=True).start()

    def end(self) -> None:
        """Ends the thread after its present poll."""
        self._ended.set()

    def _table_of(self, answer: TimekeeperAnswer, known: StandingsTable | None) -> StandingsTable:
        """Raises UndecodableStandingsError, a ValueError."""
        if known is not None and not answer.is_new:
            return known.confirmed(self._now_ms())
        return decode(answer.body, answer.etag, self._now_ms())
