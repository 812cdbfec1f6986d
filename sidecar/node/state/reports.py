"""The usage reports to the timekeeper: the mean use of each interval, stored until it is acknowledged, at
most one post in flight.

All effects go through `UsagePorts` and every moment is an argument (milliseconds of the boot clock). Nothing
here waits. Intervals that are lost, because too many wait or the timekeeper refuses them, are counted and
logged.
"""

from __future__ import annotations

from sidecar import beats
from sidecar.heartbeat_client import Delivered
from sidecar.node.state import use
from timekeeper.edge import saved_outbox
from timekeeper.edge.outbox import MAX_REASONS, NEVER, OutboxLimits
from timekeeper.edge.saved_outbox import SavedOutbox
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from sidecar.log_events import Log
    from sidecar.node.state.use import UsageReading
    from sidecar.node.values import CardLoad
    from timekeeper.edge.outbox import Left, NotDelivered, Post, Result
    from timekeeper.edge.saved_outbox import OutboxPorts

PATH = "/v1/nodeusage"
DEFAULT_INTERVAL_MS = 15_000
# Figures of cards: a post with 1,000 has 150 KB, and the timekeeper accepts 256 KiB.
MAX_IN_A_POST = 1_000
MAX_WAITING = 50_000  # some 8 MB
MAX_AGE_MS = 30 * 86_400_000  # the timekeeper accepts no greater age


@value
class UsageInterval:
    """The mean use of an interval that ended at ``at_ms``."""

    at_ms: int
    measured: UsageReading


@value
class UsagePorts:
    """The effects."""

    outbox: OutboxPorts[UsageInterval]
    fraction: Callable[[], float]  # a random number from 0 to 1
    log: Log


class UsageReports:
    """The state. Pass each reading to `add`; call `tick` after each event and at `due_ms`."""

    def __init__(
        self, ports: UsagePorts, boot: str, now_ms: int, left: Left[UsageInterval] = (None, ())
    ) -> None:
        """``boot``: the ID of this run of the agent. ``left``: what an earlier one has saved."""
        self._ports = ports
        self._interval_ms = DEFAULT_INTERVAL_MS
        self._close_at = now_ms + DEFAULT_INTERVAL_MS
        self._readings: tuple[UsageReading, ...] = ()
        self._dropped_for: set[str] = set()
        self._is_ending = False
        self.delivered = self.failed = self.dropped = 0
        limits = OutboxLimits(
            _batch,
            _spare,
            lambda failures: saved_outbox.pause_ms(failures, ports.fraction()),
            gives_up=True,
        )
        self._outbox = SavedOutbox(ports.outbox, limits, self._notice, boot, left)

    @property
    def waiting(self) -> int:
        """The number of intervals that are not acknowledged."""
        return len(self._outbox.unacknowledged())

    def add(self, measured: UsageReading) -> None:
        """Add a reading to the present interval."""
        self._readings = (*self._readings, measured)

    def due_ms(self) -> int:
        """When `tick` has something to do next."""
        return min(self._close_at, self._outbox.due_ms())

    def tick(self, now_ms: int) -> None:
        """Do what is due: end the interval, send."""
        if now_ms >= self._close_at:
            self._close(now_ms)
        self._outbox.tick(now_ms)

    def on_posted(self, outcome: Delivered | NotDelivered, now_ms: int) -> None:
        """The post in flight ended."""
        if isinstance(outcome, Delivered):
            self._outbox.on_posted(None, now_ms)
            self._interval_ms = outcome.reply.interval_ms or self._interval_ms
        else:
            self._outbox.on_posted(outcome, now_ms)

    def end(self, now_ms: int) -> None:
        """The agent ends: send what there is at once, once."""
        if not self._is_ending:
            self._is_ending = True
            self._outbox.end(now_ms)
            self._close(now_ms)
            self._close_at = NEVER

    def ended(self, now_ms: int) -> bool:
        """Whether the process may exit. Call `log_rest` then."""
        return self._outbox.ended(now_ms)

    def log_rest(self) -> None:
        """The process exits: log the intervals that are not acknowledged, either saved for the next process
        or lost."""
        if self.waiting and self._outbox.is_saved:
            self._ports.log("use-kept", intervals=self.waiting)
        elif self.waiting:
            self._drop(self.waiting, "the agent ends, and they could not be saved")

    def _close(self, now_ms: int) -> None:
        self._close_at = now_ms + beats.jittered_ms(self._interval_ms, self._ports.fraction())
        if self._readings:
            self._outbox.add(UsageInterval(now_ms, use.mean(self._readings)))
            self._readings = ()

    def _notice(self, result: Result, records: Sequence[UsageInterval], reason: str) -> None:
        if result == "dropped":
            self._drop(len(records), "too many intervals wait")
        elif result == "refused":
            self.failed += 1
            self._drop(len(records), reason)
        elif result == "sent":
            self.delivered += 1
        elif result == "failed":
            self.failed += 1
        elif result == "away":
            self._ports.log("timekeeper-away", level="warning", reason=reason, waiting=self.waiting)
        elif result == "back":
            self._ports.log("timekeeper-back", failures=self._outbox.failures, waiting=self.waiting)

    def _drop(self, intervals: int, reason: str) -> None:
        is_new = reason not in self._dropped_for and len(self._dropped_for) < MAX_REASONS
        self.dropped += intervals
        if is_new or self._is_ending:
            self._dropped_for.add(reason)
            self._ports.log("use-lost", level="warning", intervals=intervals, reason=reason)


def _batch(uses: Sequence[UsageInterval]) -> int:
    total, count = 0, 0
    for interval in uses:
        total += figures_in(interval)
        if count and total > MAX_IN_A_POST:
            break
        count += 1
    return count


def _spare(uses: Sequence[UsageInterval]) -> int | None:
    is_within = len(uses) <= 2 or sum(map(figures_in, uses)) <= MAX_WAITING
    return None if is_within else saved_outbox.smallest_gap(uses)


def figures_in(one: UsageInterval) -> int:
    """The number of figures of an interval, at least one."""
    return 1 + len(one.measured.cards) + sum(1 + len(pod.cards) for pod in one.measured.pods)


def document(post: Post[UsageInterval], now_ms: int) -> dict[str, Any]:
    """The body of ``POST /v1/nodeusage``, with ages at ``now_ms``."""
    return {
        "version": 1,
        "boot": post.boot,
        "sequence": post.sequence,
        "uses": [
            {
                "age_ms": min(MAX_AGE_MS, max(0, now_ms - each.at_ms)),
                "pods": [
                    {"uid": pod.uid, "cards": [_card(card) for card in pod.cards]}
                    for pod in each.measured.pods
                ],
                "cards": [_card(card) for card in each.measured.cards],
            }
            for each in post.records
        ],
    }


def _card(load: CardLoad) -> dict[str, Any]:
    return {"uuid": load.uuid, "utilisation": load.utilisation, "memory_mib": load.memory_mib}
