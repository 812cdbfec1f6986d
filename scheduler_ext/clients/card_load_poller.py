"""Asks the timekeeper how busy the cards are, for the policy `load`, while there are pods that go by it."""

import threading
from collections.abc import Callable
from typing import Any

import orjson

from scheduler_ext.clients.asking import FAILURES, Asking
from scheduler_ext.scoring.load import LoadByCard
from scheduler_ext.settings import Timekeeper
from timekeeper.runtime.log import Log

PATH = "/v1/nodeusage"
# With each new figure every node is weighed anew for the pods that go by it, so not each second.
POLL_EVERY_MS = 10_000
STALE_MS = 120_000  # older figures count no more
WANTED_MS = 120_000  # so long after it was last gone by, `load` is taken to be in use
LOOK_EVERY_S = 0.5


class UndecodableUsageError(ValueError):
    """The timekeeper's answer is no `wire.MeasuredCards`; the last figures stay until they are too old."""


class Measuring:
    """Polls ``GET /v1/nodeusage`` while somebody asks for `figures`, or for ever where ``always``.

    ``now_ms``: a monotonic clock; ``polled`` is told of each poll: ``heard`` or ``failed``, and the figures'
    age in seconds, -1 before the first.
    """

    def __init__(
        self,
        timekeeper: Timekeeper,
        now_ms: Callable[[], int],
        log: Log,
        polled: Callable[[str, float], None],
        always: bool = False,
    ) -> None:
        self._asking = Asking(timekeeper, PATH)
        self._now_ms, self._log, self._polled, self._always = now_ms, log, polled, always
        self._figures: LoadByCard = {}
        self._etag = ""
        self._heard_ms: int | None = None
        self._asked_ms: int | None = None
        self._wanted_ms: int | None = None
        self._last_trouble: str | None = None

    def figures(self) -> LoadByCard | None:
        """The last figures, the same object while they are the same; None where there are none, or the
        timekeeper has not been heard for `STALE_MS`."""
        now_ms = self._wanted_ms = self._now_ms()
        heard_ms = self._heard_ms
        if heard_ms is None or now_ms - heard_ms > STALE_MS:
            return None
        return self._figures or None

    def run(self, stop: threading.Event) -> None:
        """Polls when it is time, until ``stop``."""
        while not stop.is_set():
            if self.due():
                self.poll()
            stop.wait(LOOK_EVERY_S)
        self.close()

    def due(self) -> bool:
        """True where the figures are in use, and it is time to ask for newer ones."""
        now_ms, wanted_ms, asked_ms = self._now_ms(), self._wanted_ms, self._asked_ms
        is_wanted = self._always or (wanted_ms is not None and now_ms - wanted_ms <= WANTED_MS)
        return is_wanted and (asked_ms is None or now_ms - asked_ms >= POLL_EVERY_MS)

    def poll(self) -> None:
        """Asks once. A failure leaves the figures as they are, which then age."""
        self._asked_ms = self._now_ms()
        try:
            trouble = ""
            self._ask()
        except FAILURES as error:
            trouble = f"{type(error).__name__}: {error}"
        if trouble != self._last_trouble:
            if trouble:
                self._log("usage-unheard", level="warning", error=trouble)
            else:
                self._log("usage-heard")
        self._last_trouble = trouble
        age_s = -1.0 if self._heard_ms is None else (self._now_ms() - self._heard_ms) / 1000
        self._polled("failed" if trouble else "heard", age_s)

    def close(self) -> None:
        """Lets go of the connection."""
        self._asking.close()

    def _ask(self) -> None:
        reply = self._asking.get(self._etag)
        if reply.is_new:
            figures = decode(reply.body)
            if figures != self._figures:
                self._figures = figures
            self._etag = reply.etag
        self._heard_ms = self._now_ms()


def decode(body: bytes) -> LoadByCard:
    """How busy each card is, in thousandths and to the nearest hundred: what differs by less is alike, so
    that nodes share answers and each keeps its own for longer. Without those that do not tell, and without
    those that two nodes claim, for one of them is wrong. Raises UndecodableUsageError."""
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
        raise UndecodableUsageError("usage: a utilisation is no percentage")
    return value
