"""The sidecar's state machine: a beat on every interval, at most one post in flight, a last beat at the end.

All effects go through `ReporterPorts` and every moment is an argument (milliseconds of the boot clock), so a
test can
simulate a day's outage in a loop. Nothing here waits.
"""

from __future__ import annotations

from sidecar import beats, spool
from sidecar.heartbeat_client import NOT_KNOWN, Delivered, NotDelivered
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.log_events import Log
    from timekeeper.core.wire import BeatDevice


# How long a beat waits for its figures. NVML can hang for good if a card fell off the bus.
GATHER_MS = 500
# How long after SIGTERM the process waits for the reply to its last post. It should exit within a second.
ENDING_MS = 600
# Different reasons that are logged during one outage.
MAX_REASONS = 8
NEVER = 1 << 62


@value
class ReporterPorts:
    """The effects. ``post`` and ``read_cards`` only start work; its end is passed to `Reporter.on_posted` and
    `Reporter.on_cards_read`."""

    post: Callable[[spool.SpooledPost], None]
    read_cards: Callable[[], None] | None  # None: the pod names no cards
    save: Callable[[spool.Spool], None]  # to the disk
    fraction: Callable[[], float]  # a random number from 0 to 1
    log: Log


class Reporter:
    """The sidecar's state. Call `tick` after each event and at `due_ms`."""

    def __init__(self, ports: ReporterPorts, spooled: spool.Spool, now_ms: int) -> None:
        self._ports = ports
        self._spool = spooled
        self._saved = spooled  # the state on the disk
        self._interval_ms = beats.DEFAULT_INTERVAL_MS
        self._beat_at = now_ms  # the next beat
        self._gather_until: int | None = None  # a beat waits for its figures until then; None: no beat waits
        self._reading = False  # a read of NVML is in flight
        self._hanging = False  # ... and its hanging is logged
        self._posting = False  # a post is in flight
        self._retry_at = 0  # the next post, not earlier
        self._failures = 0  # failed posts in a row
        self._folding = False  # the spool is full, which is logged
        self._reasons: set[str] = set()  # reasons of failures that are logged in this outage
        self._in_budget: bool | None = None  # the standing that is logged
        self._end_at: int | None = None  # the process exits then at the latest; None: it is not ending
        self._last_try = False  # the post in flight was sent while ending
        self._gave_up = False  # ... and it failed

    def due_ms(self) -> int:
        """When `tick` has something to do next."""
        moments = [self._beat_at]
        if self._gather_until is not None:
            moments.append(self._gather_until)
        if not self._posting and self._spool.beats():
            moments.append(self._retry_at)
        if self._end_at is not None:
            moments.append(self._end_at)
        return min(moments)

    def tick(self, now_ms: int) -> None:
        """Do what is due: take a beat, save the spool, send a post."""
        if now_ms >= self._beat_at:
            self._due(now_ms)
        elif self._gather_until is not None and now_ms >= self._gather_until:
            self._beat(now_ms, ())
        self._send(now_ms)

    def on_cards_read(self, devices: tuple[BeatDevice, ...], now_ms: int) -> None:
        """NVML answered. Figures that come too late for their beat are dropped."""
        self._reading = self._hanging = False
        if self._gather_until is not None:
            self._beat(now_ms, devices)

    def on_posted(self, outcome: Delivered | NotDelivered, now_ms: int) -> None:
        """The post in flight ended."""
        self._posting = False
        if isinstance(outcome, Delivered):
            self._delivered(outcome.reply, now_ms)
        else:
            self._failed(outcome.reason, now_ms)

    def end(self, now_ms: int) -> None:
        """The pod ends: take a last beat and send it at once, without regard to the back-off."""
        if self._end_at is not None:
            return
        self._end_at = now_ms + ENDING_MS
        self._beat_at = NEVER
        self._retry_at = 0
        self._beat(now_ms, ())

    def ended(self, now_ms: int) -> bool:
        """Whether the process may exit: all beats are delivered, or a last post failed, or time is up."""
        if self._end_at is None:
            return False
        return now_ms >= self._end_at or (not self._posting and (self._gave_up or not self._spool.beats()))

    def unacknowledged(self) -> int:
        """The number of beats that the timekeeper has not acknowledged."""
        return len(self._spool.beats())

    def waits_for_a_thread(self) -> bool:
        """Whether a post or a read of NVML is in flight."""
        return self._posting or self._reading

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

    def _beat(self, now_ms: int, devices: tuple[BeatDevice, ...]) -> None:
        self._gather_until = None
        before = len(self._spool.waiting)
        self._spool = spool.add(self._spool, spool.SpooledBeat(now_ms, devices))
        if len(self._spool.waiting) <= before and not self._folding:
            self._folding = True
            self._ports.log(
                "spool-full",
                level="warning",
                reason="beats are merged with their neighbours: figures are coarser",
            )

    def _send(self, now_ms: int) -> None:
        ready = not self._posting and not self._gave_up and now_ms >= self._retry_at
        if ready:
            self._spool = spool.sending(self._spool)
        # Saved before it is sent: a process that is killed in between repeats the same post.
        if self._spool != self._saved:
            self._saved = self._spool
            self._ports.save(self._spool)
        if ready and self._spool.post:
            self._posting = True
            self._last_try = self._end_at is not None
            self._ports.post(self._spool.post)

    def _delivered(self, reply: beats.HeartbeatReply, now_ms: int) -> None:
        self._spool = spool.delivered(self._spool)
        self._folding = False
        if self._failures:
            self._ports.log("timekeeper-back", failures=self._failures, waiting=len(self._spool.beats()))
        self._failures = 0
        self._reasons.clear()
        if reply.interval_ms:
            self._set_interval(reply.interval_ms, now_ms)
        if reply.in_budget is not None and reply.in_budget != self._in_budget:
            self._in_budget = reply.in_budget
            self._ports.log("standing", in_budget=str(reply.in_budget).lower())

    def _set_interval(self, interval_ms: int, now_ms: int) -> None:
        if interval_ms == self._interval_ms:
            return
        self._interval_ms = interval_ms
        if self._end_at is None:
            soon = now_ms + beats.jittered_ms(interval_ms, self._ports.fraction())
            self._beat_at = min(self._beat_at, soon)

    def _failed(self, reason: str, now_ms: int) -> None:
        self._failures += 1
        self._gave_up = self._last_try
        wait_ms = 0 if self._end_at is not None else beats.backoff_ms(self._failures, self._ports.fraction())
        self._retry_at = now_ms + wait_ms
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            waiting = len(self._spool.beats())
            if reason == NOT_KNOWN.reason:
                self._ports.log("not-known-yet", reason=reason, spooled=waiting)
            else:
                self._ports.log("timekeeper-away", level="warning", reason=reason, spooled=waiting)
