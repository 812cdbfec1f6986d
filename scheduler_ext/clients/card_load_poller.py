"""Asks the timekeeper how busy the cards are, for the policy `load`, while there are pods that go by it."""

import threading
from collections.abc import Callable
from typing import Any

import orjson

from scheduler_ext.clients.timekeeper import client
from scheduler_ext.scoring.load import LoadByCard
from scheduler_ext.settings import Timekeeper
from timekeeper.runtime.log import Log
from timekeeper.runtime.timekeeper_client import TimekeeperAnswer, TimekeeperPoller

PATH = "/v1/nodeusage"
# Each new measurement makes the extender score every node again for pods with this policy, so the interval
# is long.
POLL_EVERY_MS = 10_000
STALE_MS = 120_000  # older measurements are ignored
WANTED_MS = 120_000  # `load` counts as in use for this long after a decision used it
LOOK_EVERY_S = 0.5


class UndecodableUsageError(ValueError):
    """The timekeeper's answer is no `wire.MeasuredCards`; the last figures stay until they are too old."""


class Measuring(TimekeeperPoller[LoadByCard]):
    """Polls ``GET /v1/nodeusage`` while `figures` is in use, or always with ``always``. See
    `TimekeeperPoller`."""

    def __init__(
        self,
        timekeeper: Timekeeper,
        now_ms: Callable[[], int],
        log: Log,
        polled: Callable[[str, float], None],
        always: bool = False,
    ) -> None:
        events = "usage-updated", "usage-failed"
        super().__init__(client(timekeeper, PATH), _figures_of, now_ms, log, events, polled)
        self._always = always
        self._polled_ms: int | None = None
        self._wanted_ms: int | None = None

    def figures(self) -> LoadByCard | None:
        """The last figures, the same object while they are the same; None where there are none, or the
        timekeeper has not answered for `STALE_MS`."""
        now_ms = self._wanted_ms = self._now_ms()
        confirmed_ms = self.confirmed_ms
        if confirmed_ms is None or now_ms - confirmed_ms > STALE_MS:
            return None
        return self.value or None

    def run(self, stop: threading.Event, every_s: float = LOOK_EVERY_S) -> None:
        """Polls when it is due, until ``stop``."""
        while not stop.is_set():
            if self.due():
                self.poll()
            stop.wait(every_s)
        self.close()

    def due(self) -> bool:
        """True where the figures are in use, and it is time to ask for newer ones."""
        now_ms, wanted_ms, polled_ms = self._now_ms(), self._wanted_ms, self._polled_ms
        is_wanted = self._always or (wanted_ms is not None and now_ms - wanted_ms <= WANTED_MS)
        return is_wanted and (polled_ms is None or now_ms - polled_ms >= POLL_EVERY_MS)

    def poll(self) -> None:
        """As `TimekeeperPoller.poll`."""
        self._polled_ms = self._now_ms()
        super().poll()


def _figures_of(answer: TimekeeperAnswer, known: LoadByCard | None) -> LoadByCard:
    """The same object while the figures are the same. Raises UndecodableUsageError."""
    if known is not None and not answer.is_new:
        return known
    figures = decode(answer.body)
    return known if known is not None and figures == known else figures


def decode(body: bytes) -> LoadByCard:
    """How busy each card is, in thousandths and to the nearest hundred: with equal figures, nodes share
    cached results, and each result stays valid for longer. Cards without a figure are left out, and so are
    cards that two nodes report, because one of them is wrong. Raises UndecodableUsageError."""
    try:
        whole = orjson.loads(body)
        if whole["version"] != 1:
            raise UndecodableUsageError("usage: not version 1")
        found: dict[str, int] = {}
        claimed: set[str] = set()
        for cards in whole["nodes"].values():
            for uuid, use in cards.items():
                if use["utilisation"] is not None and uuid not in claimed:
                    found[uuid] = (_percent(use["utilisation"]) + 5) // 10 * 100
                if uuid in claimed:
                    found.pop(uuid, None)
                claimed.add(uuid)
        return found
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UndecodableUsageError(f"usage: {type(error).__name__} {error}") from error


def _percent(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100:
        raise UndecodableUsageError("usage: a utilisation is not a percentage")
    return value
