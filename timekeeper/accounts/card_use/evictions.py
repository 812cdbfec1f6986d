"""Which pod is evicted next for exceeding its memory share, if any. Pure: values in, a decision out.

Agents' figures may be wrong, all at once and on every node after a driver upgrade. So evictions are spaced
and limited per hour: people have time to see what happens and to set ``observe``. The limit per node is
lower, so that a node with wrong figures does not use up the limit of all others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from timekeeper.accounts.card_use.overuse import FRESH_MS, OverusingPod

HOUR_MS = 3_600_000
SPACE_MS = 20_000  # between two evictions, and after the start of a settler
MAX_IN_AN_HOUR = 30
MAX_OF_A_NODE = 10  # of those
FIRST_PAUSE_MS = 30_000  # between two attempts at one pod; doubles with each attempt
LONGEST_PAUSE_MS = 600_000

# "evicted": accepted; "gone": the pod no longer existed; "protected": a PodDisruptionBudget prevents it;
# "refused": the API server refused; "unclear": an error or no answer, the pod may be evicted or not
Result = Literal["evicted", "gone", "protected", "refused", "unclear"]
RESULTS: tuple[Result, ...] = ("evicted", "gone", "protected", "refused", "unclear")


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A pod that exceeds its memory share, and whether it may be evicted."""

    over: OverusingPod
    grace_ms: int | None  # how long it may be over; None: without limit
    evictable: bool  # the pod with this UID is on this node, and has neither ended nor is about to


@dataclass(frozen=True, slots=True)
class EvictionAttempts:
    """The attempts at one pod: their number, and time and result of the last."""

    count: int
    at_ms: int
    result: Result


@dataclass(frozen=True, slots=True)
class EvictionHistory:
    """What was done since ``began_ms``. Times are of a monotonic clock: setting the clock must not make an
    hour pass."""

    began_ms: int
    evicted: tuple[tuple[int, str], ...] = ()  # (when, node) of the evictions of the last hour
    attempts: Mapping[str, EvictionAttempts] = field(default_factory=dict)  # UID -> attempts

    def after(self, uid: str, node: str, result: Result, at_ms: int) -> "EvictionHistory":
        """With one more attempt. An unclear result counts as an eviction. Entries that no rule needs any more
        are dropped."""
        attempts = {uid: each for uid, each in self.attempts.items() if at_ms - each.at_ms < HOUR_MS}
        count = attempts[uid].count + 1 if uid in attempts else 1
        lately = self._last_hour(at_ms)
        return EvictionHistory(
            self.began_ms,
            (*lately, (at_ms, node)) if result in ("evicted", "unclear") else lately,
            attempts | {uid: EvictionAttempts(count, at_ms, result)},
        )

    def is_limited(self, at_ms: int) -> bool:
        """Whether no pod may be evicted yet."""
        last_ms = self.evicted[-1][0] if self.evicted else self.began_ms
        return at_ms - last_ms < SPACE_MS or len(self._last_hour(at_ms)) >= MAX_IN_AN_HOUR

    def full_nodes(self, at_ms: int) -> frozenset[str]:
        """Nodes from which no pod may be evicted yet."""
        lately = Counter(node for _, node in self._last_hour(at_ms))
        return frozenset(node for node, count in lately.items() if count >= MAX_OF_A_NODE)

    def is_paused(self, uid: str, at_ms: int) -> bool:
        """Whether the last attempt at this pod was too recent for another."""
        attempts = self.attempts.get(uid)
        if attempts is None:
            return False
        pause_ms = min(FIRST_PAUSE_MS << min(attempts.count - 1, 10), LONGEST_PAUSE_MS)
        if attempts.result == "evicted":  # accepted, but the watch may report the deletion late
            pause_ms = LONGEST_PAUSE_MS
        return at_ms - attempts.at_ms < pause_ms

    def _last_hour(self, at_ms: int) -> tuple[tuple[int, str], ...]:
        return tuple(each for each in self.evicted if at_ms - each[0] < HOUR_MS)


@dataclass(frozen=True, slots=True)
class EvictionDecision:
    """The pod to evict now, if any, and the number of due pods that the limits hold back."""

    chosen: EvictionCandidate | None
    held_back: int


def decide(
    candidates: Iterable[EvictionCandidate], past: EvictionHistory, now_ms: int, at_ms: int
) -> EvictionDecision:
    """Of the due pods the one that has been over its share longest. ``now_ms``: the clock that dates samples;
    ``at_ms``: the monotonic clock of ``past``."""
    due = [each for each in candidates if is_due(each, now_ms) and not past.is_paused(each.over.uid, at_ms)]
    limited = past.full_nodes(at_ms)
    free = [each for each in due if each.over.node not in limited]
    if not free or past.is_limited(at_ms):
        return EvictionDecision(None, len(due))
    first = min(free, key=lambda each: (each.over.episode.since_ms, each.over.uid))
    return EvictionDecision(first, len(due) - 1)


def is_due(candidate: EvictionCandidate, now_ms: int) -> bool:
    """Whether samples saw the pod over its share from the beginning to the end of its grace period, the last
    of them recently. Time without samples is no evidence."""
    episode, grace_ms = candidate.over.episode, candidate.grace_ms
    if grace_ms is None or not candidate.evictable:
        return False
    is_fresh = abs(now_ms - episode.seen_ms) < FRESH_MS  # abs: the clock may have been set back
    return is_fresh and episode.seen_ms - episode.since_ms >= grace_ms
