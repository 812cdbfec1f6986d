"""The sidecar's state machine: a beat on every interval, at most one post in flight, a last beat at the end.

All effects go through `ReporterPorts` and every moment is an argument (milliseconds of the boot clock), so a
test can simulate a day's outage in a loop. Nothing here waits.
"""

from __future__ import annotations

from sidecar import beats, spool
from sidecar.heartbeat_client import NOT_KNOWN, Delivered
from sidecar.spool import SpooledBeat
from timekeeper.edge.outbox import NEVER
from timekeeper.edge.saved_outbox import SavedOutbox
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from sidecar.log_events import Log
    from timekeeper.edge.outbox import Left, NotDelivered, Result
    from timekeeper.edge.saved_outbox import OutboxPorts

# How long a beat waits for its figures. NVML can hang for good if a card fell off the bus.
GATHER_MS = 500


@value
class ReporterPorts:
    """The effects. ``read_cards`` only starts work; its end is passed to `Reporter.on_cards_read`."""

    outbox: OutboxPorts[SpooledBeat]
    read_cards: Callable[[], None] | None  # None: the pod names no cards
    fraction: Callable[[], float]  # a random number from 0 to 1
    log: Log


class Reporter:
    """The sidecar's state. Call `tick` after each event and at `due_ms`."""

    def __init__(
        self, ports: ReporterPorts, boot: str, now_ms: int, left: Left[SpooledBeat] = (None, ())
    ) -> None:
        """``boot``: the ID of this run of the sidecar. ``left``: what an earlier one has saved."""
        self._ports = ports
        self._interval_ms = beats.DEFAULT_INTERVAL_MS
        self._beat_at = now_ms  # the next beat
        self._gather_until: int | None = None  # a beat waits for its figures until then; None: no beat waits
        self._reading = False  # a read of NVML is in flight
        self._hanging = False  # ... and its hanging is logged
        self._folding = False  # the spool is full, which is logged
        self._in_budget: bool | None = None  # the standing that is logged
        self._is_ending = False
        self._outbox = SavedOutbox(ports.outbox, spool.limits(ports.fraction), self._notice, boot, left)

    def due_ms(self) -> int:
        """When `tick` has something to do next."""
        gather_until = NEVER if self._gather_until is None else self._gather_until
        return min(self._beat_at, gather_until, self._outbox.due_ms())

    def tick(self, now_ms: int) -> None:
        """Do what is due: take a beat, save the spool, send a post."""
        if now_ms >= self._beat_at:
            self._due(now_ms)
        elif self._gather_until is not None and now_ms >= self._gather_until:
            self._beat(now_ms, ())
        self._outbox.tick(now_ms)

    def on_cards_read(self, devices: tuple[dict[str, Any], ...], now_ms: int) -> None:
        """NVML answered. Figures that come too late for their beat are dropped."""
        self._reading = self._hanging = False
        if self._gather_until is not None:
            self._beat(now_ms, devices)

    def on_posted(self, outcome: Delivered | NotDelivered, now_ms: int) -> None:
        """The post in flight ended."""
        if isinstance(outcome, Delivered):
            self._outbox.on_posted(None, now_ms)
            self._read(outcome.reply, now_ms)
        else:
            self._outbox.on_posted(outcome, now_ms)

    def end(self, now_ms: int) -> None:
        """The pod ends: take a last beat and send it at once, without regard to the back-off."""
        if not self._is_ending:
            self._is_ending = True
            self._outbox.end(now_ms)
            self._beat_at = NEVER
            self._beat(now_ms, ())

    def ended(self, now_ms: int) -> bool:
        """Whether the process may exit: all beats are delivered, or a last post failed, or time is up."""
        return self._outbox.ended(now_ms)

    def unacknowledged(self) -> int:
        """The number of beats that the timekeeper has not acknowledged."""
        return len(self._outbox.unacknowledged())

    def waits_for_a_thread(self) -> bool:
        """Whether a post or a read of NVML is in flight."""
        return self._outbox.in_flight or self._reading

    def _due(self, now_ms: int) -> None:
        self._beat_at = now_ms + beats.jittered_ms(self._interval_ms, self._ports.fraction())
        if self._ports.read_cards is None or self._reading:
            self._beat(now_ms, ())
            if self._reading and not self._hanging:
                self._hanging = True
                self._ports.log(
                    "nvml-hangs", level="warning", reason="heartbeats contain no figures until it answers"
                )
            return
        self._gather_until = now_ms + GATHER_MS
        self._reading = True
        self._ports.read_cards()

    def _beat(self, now_ms: int, devices: tuple[dict[str, Any], ...]) -> None:
        self._gather_until = None
        self._outbox.add(SpooledBeat(now_ms, devices))

    def _read(self, reply: beats.HeartbeatReply, now_ms: int) -> None:
        if reply.interval_ms:
            self._set_interval(reply.interval_ms, now_ms)
        if reply.in_budget is not None and reply.in_budget != self._in_budget:
            self._in_budget = reply.in_budget
            self._ports.log("standing", in_budget=str(reply.in_budget).lower())

    def _set_interval(self, interval_ms: int, now_ms: int) -> None:
        if interval_ms == self._interval_ms:
            return
        self._interval_ms = interval_ms
        if not self._is_ending:
            soon = now_ms + beats.jittered_ms(interval_ms, self._ports.fraction())
            self._beat_at = min(self._beat_at, soon)

    def _notice(self, result: Result, records: Sequence[SpooledBeat], reason: str) -> None:
        log = self._ports.log
        if result == "dropped" and not self._folding:
            self._folding = True
            why = "beats are merged with their neighbours: figures are coarser"
            log("spool-full", level="warning", reason=why)
        elif result == "sent":
            self._folding = False
        elif result == "away" and reason == NOT_KNOWN.reason:
            log("not-known-yet", reason=reason, waiting=self.unacknowledged())
        elif result == "away":
            log("timekeeper-away", level="warning", reason=reason, waiting=self.unacknowledged())
        elif result == "back":
            log("timekeeper-back", failures=self._outbox.failures, waiting=self.unacknowledged())
