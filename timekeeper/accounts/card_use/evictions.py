"""Which pod is evicted next for exceeding its memory share, if any. Pure: values in, a decision out.

Agents' figures may be wrong, all at once and on every node after a driver upgrade. So evictions are spaced
and limited per hour: people have time to see what happens and to set ``observe``. The limit per node is
lower, so that a node with wrong figures does not use up the limit of all others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.card_use.overuse import FRESH_MS, OverusingPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.kube.eviction import EVICTION_RESULTS, EvictionResult

HOUR_MS = 3_600_000
SPACE_MS = 20_000  # between two evictions, and after the start of a settler
MAX_IN_AN_HOUR = 30
MAX_OF_A_NODE = 10  # of those
FIRST_PAUSE_MS = 30_000  # between two attempts at one pod; doubles with each attempt
LONGEST_PAUSE_MS = 600_000
RESULTS = tuple(each for each in EVICTION_RESULTS if each != "deleted")


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A pod that exceeds its memory share. ``pod``: None unless it holds cards of this node and is not
    leaving."""

    over: OverusingPod
    grace_ms: int | None  # how long it may be over; None: without limit
    pod: LedgerPod | None


@dataclass(frozen=True, slots=True)
class EvictionAttempts:
    """The attempts at one pod: their number, and time and result of the last."""

    count: int
    at_ms: int
    result: EvictionResult


@dataclass(frozen=True, slots=True)
class EvictionHistory:
    """What was done since ``began_ms``. Times are of a monotonic clock: setting the clock must not make an
    hour pass."""

    began_ms: int
    evicted: tuple[tuple[int, str], ...] = ()  # (when, node) of the evictions of the last hour
    attempts: Mapping[str, EvictionAttempts] = field(default_factory=dict)  # UID -> attempts

    def after(self, uid: str, node: str, result: EvictionResult, at_ms: int) -> "EvictionHistory":
        """With one more attempt. An unclear result counts as an eviction. Entries that no rule needs any more
        are dropped."""
        attempts = {uid: each for uid, each in self.attempts.items() if at_ms - each.at_ms < HOUR_MS}
        lately = self._last_hour(at_ms)
        return EvictionHistory(
            self.began_ms,
            (*lately, (at_ms, node)) if result in ("evicted", "unclear") else lately,
            attempts | {uid: EvictionAttempts(self.attempt_of(uid, at_ms), at_ms, result)},
        )

    def attempt_of(self, uid: str, at_ms: int) -> int:
        """The number of the next attempt at this pod, from 1 on."""
        known = self.attempts.get(uid)
        return known.count + 1 if known is not None and at_ms - known.at_ms < HOUR_MS else 1

    def was_protected(self, uid: str) -> bool:
        """Whether a PodDisruptionBudget refused the last attempt at this pod."""
        known = self.attempts.get(uid)
        return known is not None and known.result == "protected"

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


def candidate(over: OverusingPod, pod: LedgerPod | None, history: History, now_ms: int) -> EvictionCandidate:
    """The overusing pod, as the watches and the budgets show it now; no pod that was created without
    enforcement."""
    grace_ms = history.overuse_grace_ms(over.namespace, now_ms)
    is_there = pod is not None and pod.is_charged and pod.node == over.node and history.was_enforced(pod)
    return EvictionCandidate(over, grace_ms, pod if is_there else None)


def due(
    candidates: Iterable[EvictionCandidate], past: EvictionHistory, now_ms: int, at_ms: int
) -> EvictionDecision:
    """Of the due pods the one that has been over its share longest. ``now_ms``: the clock that dates samples;
    ``at_ms``: the monotonic clock of ``past``."""
    late = [each for each in candidates if is_due(each, now_ms) and not past.is_paused(each.over.uid, at_ms)]
    limited = past.full_nodes(at_ms)
    free = [each for each in late if each.over.node not in limited]
    if not free or past.is_limited(at_ms):
        return EvictionDecision(None, len(late))
    first = min(free, key=lambda each: (each.over.episode.since_ms, each.over.uid))
    return EvictionDecision(first, len(late) - 1)


def is_due(candidate: EvictionCandidate, now_ms: int) -> bool:
    """Whether samples saw the pod over its share from the beginning to the end of its grace period, the last
    of them recently. Time without samples is no evidence."""
    episode, grace_ms = candidate.over.episode, candidate.grace_ms
    if grace_ms is None or candidate.pod is None:
        return False
    is_fresh = abs(now_ms - episode.seen_ms) < FRESH_MS  # abs: the clock may have been set back
    return is_fresh and episode.seen_ms - episode.since_ms >= grace_ms
