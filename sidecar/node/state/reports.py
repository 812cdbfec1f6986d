"""The usage reports to the timekeeper: the mean use of each interval, stored until it is acknowledged, at
most one post in flight.

All effects go through `UsagePorts` and every moment is an argument (milliseconds of the boot clock). Nothing
here waits. If too many intervals wait, those whose removal leaves the smallest gap are dropped, counted and
logged, but never the first or the last.
"""

from __future__ import annotations

from sidecar import beats
from sidecar.heartbeat_client import Delivered, NotDelivered
from sidecar.node.state import use
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.log_events import Log
    from sidecar.node.state.use import UsageReading
    from sidecar.node.values import CardLoad
    from timekeeper.core.wire import CardUse, NodeUsage

PATH = "/v1/nodeusage"
DEFAULT_INTERVAL_MS = 15_000
# Figures of cards: a post with 1,000 has 150 KB, and the timekeeper accepts 256 KiB.
MAX_IN_A_POST = 1_000
MAX_WAITING = 50_000  # some 8 MB
MAX_AGE_MS = 30 * 86_400_000  # the timekeeper accepts no greater age
ENDING_MS = 600
MAX_REASONS = 8
# Refusals that a repeat would get again.
_FINAL = ("it answered 400", "it answered 413")


@value
class UsageInterval:
    """The mean use of an interval that ended at ``at_ms``."""

    at_ms: int
    measured: UsageReading


@value
class UsagePost:
    """Intervals that are sent, and repeated, together."""

    boot: str  # the run of the agent that sent them first
    sequence: int  # the number of this post within that run
    uses: tuple[UsageInterval, ...]


@value
class UsagePorts:
    """The effects."""

    post: Callable[[UsagePost], None]  # starts a post; its end is passed to `UsageReports.on_posted`
    # replaces the saved post in flight and the waiting intervals on the disk; False if that failed
    save: Callable[[UsagePost | None, tuple[UsageInterval, ...]], bool]
    fraction: Callable[[], float]  # a random number from 0 to 1
    log: Log


class UsageReports:
    """The state. Pass each reading to `add`; call `tick` after each event and at `due_ms`."""

    def __init__(
        self,
        ports: UsagePorts,
        boot: str,
        now_ms: int,
        left: tuple[UsagePost | None, tuple[UsageInterval, ...]] = (None, ()),
    ) -> None:
        """``left``: the post and the intervals that an earlier process saved."""
        self._ports = ports
        self._boot = boot
        self._sequence = 1
        self._interval_ms = DEFAULT_INTERVAL_MS
        self._close_at = now_ms + DEFAULT_INTERVAL_MS
        self._readings: tuple[UsageReading, ...] = ()
        self._post, self._waiting = self._saved = left
        self._is_saved = True
        self._posting = False
        self._retry_at = 0
        self._failures = 0
        self._reasons: set[str] = set()
        self._dropped_for: set[str] = set()
        self._end_at: int | None = None
        self._gave_up = False
        self.delivered = self.failed = self.dropped = 0

    @property
    def waiting(self) -> int:
        """The number of intervals that are not acknowledged."""
        return len(self._waiting) + (len(self._post.uses) if self._post else 0)

    def add(self, measured: UsageReading) -> None:
        """Add a reading to the present interval."""
        self._readings = (*self._readings, measured)

    def due_ms(self) -> int:
        """When `tick` has something to do next."""
        moments = [self._close_at]
        if self.waiting and not self._posting:
            moments.append(self._retry_at)
        if self._end_at is not None:
            moments.append(self._end_at)
        return min(moments)

    def tick(self, now_ms: int) -> None:
        """Do what is due: end the interval, send."""
        if now_ms >= self._close_at:
            self._close(now_ms)
        is_new = self._is_posting(now_ms)
        self._save()  # before it is sent, or the next process would send it as another
        if is_new and self._post is not None:
            self._ports.post(self._post)

    def _is_posting(self, now_ms: int) -> bool:
        """Whether a post is to be sent now; then it is under way."""
        if self._posting or self._gave_up or now_ms < self._retry_at:
            return False
        if self._post is None and self._waiting:
            self._post, self._waiting = self._next(), self._waiting[self._fit() :]
            self._sequence += 1
        self._posting = self._post is not None
        return self._posting

    def on_posted(self, outcome: Delivered | NotDelivered, now_ms: int) -> None:
        """The post in flight ended."""
        self._posting = False
        if isinstance(outcome, Delivered):
            self._delivered(outcome.reply)
        elif outcome.reason.startswith(_FINAL):
            self._refused(outcome.reason)
        else:
            self._failed(outcome.reason, now_ms)
        self._save()

    def end(self, now_ms: int) -> None:
        """The agent ends: send what there is at once, once."""
        if self._end_at is None:
            self._end_at = now_ms + ENDING_MS
            self._close(now_ms)
            self._close_at = self._end_at
            self._retry_at = 0

    def ended(self, now_ms: int) -> bool:
        """Whether the process may exit. Call `log_rest` then."""
        if self._end_at is None:
            return False
        return now_ms >= self._end_at or (not self._posting and (self._gave_up or not self.waiting))

    def log_rest(self) -> None:
        """The process exits: log the intervals that are not acknowledged, either saved for the next process
        or lost."""
        if self.waiting and self._is_saved:
            self._ports.log("use-kept", intervals=self.waiting)
        elif self.waiting:
            self._drop(self.waiting, "the agent ends, and they could not be saved")

    def _close(self, now_ms: int) -> None:
        self._close_at = now_ms + beats.jittered_ms(self._interval_ms, self._ports.fraction())
        if self._readings:
            self._waiting = (*self._waiting, UsageInterval(now_ms, use.mean(self._readings)))
            self._readings = ()
            self._fold()

    def _save(self) -> None:
        post, waiting = self._saved
        if self._post is not post or self._waiting is not waiting:
            self._saved = self._post, self._waiting
            self._is_saved = self._ports.save(*self._saved)

    def _fold(self) -> None:
        folded = fold(self._waiting, MAX_WAITING)
        if len(folded) < len(self._waiting):
            self._drop(len(self._waiting) - len(folded), "too many intervals wait")
        self._waiting = folded

    def _fit(self) -> int:
        """How many of the waiting intervals fit into one post: at least one."""
        total, count = 0, 0
        for each in self._waiting:
            total += figures_in(each)
            if count and total > MAX_IN_A_POST:
                break
            count += 1
        return count

    def _next(self) -> UsagePost:
        return UsagePost(self._boot, self._sequence, self._waiting[: self._fit()])

    def _delivered(self, reply: beats.HeartbeatReply) -> None:
        self._post = None
        self.delivered += 1
        if self._failures:
            self._ports.log("timekeeper-back", failures=self._failures, waiting=self.waiting)
        self._failures = 0
        self._reasons.clear()
        if reply.interval_ms:
            self._interval_ms = reply.interval_ms

    def _refused(self, reason: str) -> None:
        lost = len(self._post.uses) if self._post else 0
        self._post = None
        self.failed += 1
        self._drop(lost, reason)

    def _failed(self, reason: str, now_ms: int) -> None:
        self.failed += 1
        self._failures += 1
        self._gave_up = self._end_at is not None
        self._retry_at = now_ms + beats.backoff_ms(self._failures, self._ports.fraction())
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            self._ports.log("timekeeper-away", level="warning", reason=reason, waiting=self.waiting)

    def _drop(self, looks: int, reason: str) -> None:
        is_new = reason not in self._dropped_for and len(self._dropped_for) < MAX_REASONS
        self.dropped += looks
        if is_new or self._end_at is not None:
            self._dropped_for.add(reason)
            self._ports.log("use-lost", level="warning", intervals=looks, reason=reason)


def fold(uses: tuple[UsageInterval, ...], most: int) -> tuple[UsageInterval, ...]:
    """The intervals, reduced to ``most`` figures in total, always with the first and the last and with gaps
    as even as possible."""
    while len(uses) > 2 and sum(map(figures_in, uses)) > most:
        gaps = ((uses[i + 1].at_ms - uses[i - 1].at_ms, i) for i in range(1, len(uses) - 1))
        _, least = min(gaps)
        uses = uses[:least] + uses[least + 1 :]
    return uses


def figures_in(one: UsageInterval) -> int:
    """The number of figures of an interval, at least one."""
    return 1 + len(one.measured.cards) + sum(1 + len(pod.cards) for pod in one.measured.pods)


def document(post: UsagePost, now_ms: int) -> NodeUsage:
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
            for each in post.uses
        ],
    }


def _card(load: CardLoad) -> CardUse:
    return {"uuid": load.uuid, "utilisation": load.utilisation, "memory_mib": load.memory_mib}
