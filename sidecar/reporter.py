"""What the sidecar does next: beats on time whatever happens, one post under way at most, a last beat at the
end.

All effects go through `ReporterPorts` and every moment is an argument (milliseconds of the boot clock), so a
test can
simulate a day's outage in a loop. Nothing here waits.
"""

from __future__ import annotations

from sidecar import beats, spool
from sidecar.heartbeat_client import NOT_KNOWN, Delivered, NotDelivered
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from timekeeper.core.wire import BeatDevice

    class Say(Protocol):
        """A line of the log."""

        def __call__(self, event: str, **pairs: object) -> None: ...


# NVML can hang for good with a card that fell off the bus: a beat waits no longer than this for its figures.
GATHER_MS = 500
# From SIGTERM until the process lets go of an unanswered last beat; what is left of the second is for
# exiting.
ENDING_MS = 600
# A sidecar that is to end with the pod's other containers can be told so by the timekeeper alone. Where that
# has been silent for so long, it ends unasked: a Job must not hold its cards for ever. What the pod used is
# charged all the same, by the kubelet's timestamps.
MOST_SILENCE_MS = 600_000
# How late such a sidecar may learn that the others have ended, however seldom it is asked to beat: the cards
# are held for nothing meanwhile.
MOST_ENDING_INTERVAL_MS = 60_000
# A server whose every refusal reads differently does not fill the log of an outage.
MOST_REASONS = 8
NEVER = 1 << 62


@value
class ReporterPorts:
    """The edges. ``post`` and ``gauge`` only start something, whose end is told to ``posted`` and
    ``gauged``."""

    post: Callable[[spool.HeartbeatPost], None]
    gauge: Callable[[], None] | None
    keep: Callable[[spool.Spool], None]
    fraction: Callable[[], float]
    say: Say


class Reporter:
    """The sidecar's state. Call ``tick`` after each event and at ``due_ms``.

    ``ends_when_over``: nobody else ends it when the pod's other containers have ended (a plain container, not
    a native sidecar), so it ends by itself once the timekeeper says that they have, or has been silent for
    ``MOST_SILENCE_MS``.
    """

    def __init__(
        self, ports: ReporterPorts, spooled: spool.Spool, now_ms: int, ends_when_over: bool = False
    ) -> None:
        self._ports = ports
        self._ends_when_over = ends_when_over
        self._silent_until = now_ms + MOST_SILENCE_MS if ends_when_over else NEVER
        self._spool = spooled
        self._kept = spooled
        self._interval_ms = beats.DEFAULT_INTERVAL_MS
        self._beat_at = now_ms
        self._gather_until: int | None = None
        self._gauging = False
        self._hanging = False
        self._posting = False
        self._retry_at = 0
        self._failures = 0
        self._folding = False
        self._reasons: set[str] = set()
        self._in_budget: bool | None = None
        self._end_at: int | None = None
        self._last_try = False
        self._gave_up = False

    def due_ms(self) -> int:
        """The next moment at which ``tick`` has something to do."""
        moments = [self._beat_at, self._silent_until]
        if self._gather_until is not None:
            moments.append(self._gather_until)
        if not self._posting and self._spool.beats():
            moments.append(self._retry_at)
        if self._end_at is not None:
            moments.append(self._end_at)
        return min(moments)

    def tick(self, now_ms: int) -> None:
        """Do what is due: take a beat, write the spool, send."""
        if now_ms >= self._silent_until:
            self._ports.say("ends", reason=f"no answer for {MOST_SILENCE_MS // 1000} s")
            self.end(now_ms)
        if now_ms >= self._beat_at:
            self._due(now_ms)
        elif self._gather_until is not None and now_ms >= self._gather_until:
            self._beat(now_ms, ())
        self._send(now_ms)

    def gauged(self, devices: tuple[BeatDevice, ...], now_ms: int) -> None:
        """NVML answered; figures that no beat waits for any more are dropped."""
        self._gauging = self._hanging = False
        if self._gather_until is not None:
            self._beat(now_ms, devices)

    def posted(self, outcome: Delivered | NotDelivered, now_ms: int) -> None:
        """The post under way came to its end."""
        self._posting = False
        if isinstance(outcome, Delivered):
            self._delivered(outcome.answer, now_ms)
        else:
            self._failed(outcome.reason, now_ms)

    def end(self, now_ms: int) -> None:
        """The pod ends: a last beat goes at once, also where a post would have waited."""
        if self._end_at is not None:
            return
        self._end_at = now_ms + ENDING_MS
        self._beat_at = self._silent_until = NEVER
        self._retry_at = 0
        self._beat(now_ms, ())

    def ended(self, now_ms: int) -> bool:
        """Whether the process may exit: all is delivered, or was tried in vain, or time is up."""
        if self._end_at is None:
            return False
        return now_ms >= self._end_at or (not self._posting and (self._gave_up or not self._spool.beats()))

    def unacknowledged(self) -> int:
        """How many beats the timekeeper has not acknowledged."""
        return len(self._spool.beats())

    def waits_for_a_thread(self) -> bool:
        """Whether a post or a reading of NVML is still under way."""
        return self._posting or self._gauging

    def _due(self, now_ms: int) -> None:
        self._beat_at = now_ms + beats.jittered_ms(self._interval_ms, self._ports.fraction())
        if self._ports.gauge is None or self._gauging:
            self._beat(now_ms, ())
            self._note_a_hang()
            return
        self._gather_until = now_ms + GATHER_MS
        self._gauging = True
        self._ports.gauge()

    def _note_a_hang(self) -> None:
        if self._gauging and not self._hanging:
            self._hanging = True
            self._ports.say("nvml-hangs", reason="beats go without figures until it answers")

    def _beat(self, now_ms: int, devices: tuple[BeatDevice, ...]) -> None:
        self._gather_until = None
        before = len(self._spool.waiting)
        self._spool = spool.add(self._spool, spool.SpooledBeat(now_ms, devices))
        if len(self._spool.waiting) <= before and not self._folding:
            self._folding = True
            self._ports.say(
                "spool-full", reason="beats are folded into their neighbours: figures are coarser"
            )

    def _send(self, now_ms: int) -> None:
        ready = not self._posting and not self._gave_up and now_ms >= self._retry_at
        if ready:
            self._spool = spool.sending(self._spool)
        # On disk before it is on the wire: a process killed between the two repeats the same post.
        if self._spool != self._kept:
            self._kept = self._spool
            self._ports.keep(self._spool)
        if ready and self._spool.post:
            self._posting = True
            self._last_try = self._end_at is not None
            self._ports.post(self._spool.post)

    def _delivered(self, answer: beats.HeartbeatReply, now_ms: int) -> None:
        self._spool = spool.delivered(self._spool)
        self._folding = False
        if self._failures:
            self._ports.say("timekeeper-back", failures=self._failures, waiting=len(self._spool.beats()))
        self._failures = 0
        self._reasons.clear()
        if answer.interval_ms:
            self._pace(answer.interval_ms, now_ms)
        if answer.in_budget is not None and answer.in_budget != self._in_budget:
            self._in_budget = answer.in_budget
            self._ports.say("standing", in_budget=str(answer.in_budget).lower())
        if self._ends_when_over:
            self._heard(answer.over, now_ms)

    def _heard(self, over: bool, now_ms: int) -> None:
        if self._end_at is not None:
            return
        self._silent_until = now_ms + MOST_SILENCE_MS
        if over:
            self._ports.say("ends", reason="the pod's other containers have ended")
            self.end(now_ms)

    def _pace(self, asked_ms: int, now_ms: int) -> None:
        interval_ms = min(asked_ms, MOST_ENDING_INTERVAL_MS) if self._ends_when_over else asked_ms
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
        if reason not in self._reasons and len(self._reasons) < MOST_REASONS:
            self._reasons.add(reason)
            event = "not-known-yet" if reason == NOT_KNOWN.reason else "timekeeper-away"
            self._ports.say(event, reason=reason, spooled=len(self._spool.beats()))
