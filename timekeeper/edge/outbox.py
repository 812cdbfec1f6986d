"""Records that wait, in order, until the other side has taken them. Pure: no clock, network or disk.

The oldest of them go together as a post. At most one post is in flight, and it stays as it is until it is
acknowledged, so that the other side recognises a repeat by its boot and sequence. The outbox is bounded. What
goes when it is full, how many records fit into a post and how long it pauses is its `OutboxLimits`.

`edge.memory_outbox` runs one in a thread, `edge.saved_outbox` one that outlives its process.
"""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING, Of, value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, TypeVar

    R = TypeVar("R")

    Left = tuple["Post[R] | None", Sequence[R]]  # the post in flight and the waiting records

    # ``taken``: they wait no more, but are in flight; ``dropped``: too many waited; ``refused``: the other
    # side will never take them; ``failed``: a post found no taker and is repeated; ``away``: the same, for
    # a reason that is new in this outage; ``back``: the outage is over
    Result = Literal["taken", "sent", "dropped", "refused", "failed", "away", "back"]
else:
    R = Result = None


ENDING_MS = 600  # how long a process that ends waits for the reply to its last post
MAX_REASONS = 8  # reasons of one outage that are reported
NEVER = 1 << 62
REFUSED = (400, 413, 422)  # a repeat of the same body would be refused again
_ANY = 1 << 20


@value
class Post(Of[R]):
    """Records that are sent, and repeated, together."""

    boot: str  # the run of the process that sent them first
    sequence: int  # the number of this post within that run
    records: tuple[R, ...]


@value
class NotDelivered:
    """The post is not acknowledged. ``reason``: a sentence without any token; ``is_final``: the same body
    would be refused again."""

    reason: str
    is_final: bool


@value
class OutboxLimits(Of[R]):
    """What differs between outboxes."""

    batch: Callable[[Sequence[R]], int]  # how many of the oldest fit into one post, at least one
    spare: Callable[[Sequence[R]], int | None]  # the place of the record that goes; None: none has to
    pause_ms: Callable[[int], int]  # before the next try after this number of failures in a row
    # Half of a post that is refused goes alone, and a single record is given up. Else it is tried again.
    gives_up: bool


class Outbox(Of[R]):
    """One thread at a time uses it. ``notice(result, records, reason)`` is called with what becomes of
    records; see `Result`."""

    def __init__(
        self,
        limits: OutboxLimits[R],
        notice: Callable[[Result, Sequence[R], str], None],
        boot: str = "",
        left: Left[R] = (None, ()),
    ) -> None:
        """``boot``: the ID of this run of the process. ``left``: the post in flight and the waiting records
        of an earlier one."""
        self._limits, self._notice, self._boot = limits, notice, boot
        self._sequence = 1  # of the next new post
        self.post, self.waiting = left[0], list(left[1])
        self.is_changed = False  # since somebody has set it to False
        self.in_flight = False
        self._most = _ANY  # records of the next post
        self._retry_at = 0
        self.failures = 0  # in a row
        self._reasons: set[str] = set()
        self._end_at: int | None = None  # None: the process is not ending
        self._last_try = False  # the post in flight was sent while ending
        self._gave_up = False  # ... and it failed
        self._drop_some()

    def add(self, record: R) -> None:
        """Append a record. If too many wait then, some are dropped."""
        self.waiting.append(record)
        self.is_changed = True
        self._drop_some()

    def unacknowledged(self) -> tuple[R, ...]:
        """Every record that is not acknowledged, the oldest first."""
        return ((*self.post.records,) if self.post else ()) + tuple(self.waiting)

    def due_ms(self) -> int:
        """When there is something to do next."""
        has_work = not self.in_flight and bool(self.post or self.waiting)
        return min(self._retry_at if has_work else NEVER, NEVER if self._end_at is None else self._end_at)

    def next(self, now_ms: int) -> Post[R] | None:
        """The post to send now: the unacknowledged one again, else the oldest records. None: nothing is
        due. `start` follows."""
        if self.in_flight or self._gave_up or now_ms < self._retry_at:
            return None
        if self.post is None and self.waiting:
            count = min(self._limits.batch(self.waiting), self._most)
            self.post = Post(self._boot, self._sequence, tuple(self.waiting[:count]))
            del self.waiting[:count]
            self._sequence += 1
            self.is_changed = True
            self._notice("taken", self.post.records, "")
        return self.post

    def start(self) -> None:
        """The next post is in flight until `on_posted`."""
        self.in_flight, self._last_try = True, self._end_at is not None

    def on_posted(self, failure: NotDelivered | None, now_ms: int) -> None:
        """The post in flight ended; None: it is acknowledged."""
        self.in_flight = False
        if self.post is None:
            return
        if failure is not None and not (failure.is_final and self._limits.gives_up):
            self._failed(failure.reason, now_ms)
            return
        records, self.post = self.post.records, None
        self.is_changed = True
        self._answered()
        if failure is not None and len(records) > 1:
            self._most = len(records) // 2
            self.waiting[:0] = records
            return
        self._most = min(_ANY, 2 * self._most)
        self._notice("refused" if failure else "sent", records, failure.reason if failure else "")

    def end(self, now_ms: int) -> None:
        """The process ends: send what there is at once, once."""
        if self._end_at is None:
            self._end_at = now_ms + ENDING_MS
            self._retry_at = 0

    def ended(self, now_ms: int) -> bool:
        """Whether the process may exit: all is acknowledged, or a last post failed, or time is up."""
        if self._end_at is None:
            return False
        is_done = self._gave_up or not (self.post or self.waiting)
        return now_ms >= self._end_at or (not self.in_flight and is_done)

    def _drop_some(self) -> None:
        dropped = []
        while (place := self._limits.spare(self.waiting)) is not None:
            dropped.append(self.waiting.pop(place))
        if dropped:
            self._notice("dropped", dropped, "")

    def _answered(self) -> None:
        if self.failures:
            self._notice("back", (), "")
        self.failures = 0
        self._reasons.clear()

    def _failed(self, reason: str, now_ms: int) -> None:
        self.failures += 1
        self._gave_up = self._last_try
        self._retry_at = now_ms + (0 if self._end_at is not None else self._limits.pause_ms(self.failures))
        self._notice("failed", (), reason)
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            self._notice("away", (), reason)
