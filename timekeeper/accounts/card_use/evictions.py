"""Which pod is evicted next for being over its memory share, if any. Pure: values in, a verdict out.

Agents' figures may be wrong, all at once and everywhere after a driver's upgrade. So evictions are spaced,
and there are only so many in an hour: people have the time to see what goes on and to say ``observe``. And
only a part of these may be of one node, so that one whose figures are wrong leaves some for the others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from timekeeper.accounts.card_use.overuse import FRESH_MS, OverusingPod

HOUR_MS = 3_600_000
SPACE_MS = 20_000  # between two evictions, and after the start of whoever decides
MOST_IN_AN_HOUR = 30
MOST_OF_A_NODE = 10  # of those
FIRST_PAUSE_MS = 30_000  # between two attempts at one pod; each is twice the one before
LONGEST_PAUSE_MS = 600_000

# "evicted": it goes; "gone": it had gone before; "protected": a PodDisruptionBudget keeps it; "refused": the
# API server will not, for now or at all; "unclear": it failed or did not answer, so the pod may go or not
Result = Literal["evicted", "gone", "protected", "refused", "unclear"]
RESULTS: tuple[Result, ...] = ("evicted", "gone", "protected", "refused", "unclear")


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """A pod over its share. ``grace_ms``: how long it may be, None: as long as it likes; ``may_leave``: it is
    the pod that is there under this UID, on this node, and neither ended nor about to go."""

    over: OverusingPod
    grace_ms: int | None
    may_leave: bool


@dataclass(frozen=True, slots=True)
class EvictionAttempts:
    """The attempts at one pod: how many, when the last was made, and what came of it."""

    count: int
    at_ms: int
    result: Result


@dataclass(frozen=True, slots=True)
class EvictionHistory:
    """What was done since ``began_ms``: when pods were evicted in the last hour and from which node, and at
    whom it was tried. Its moments are of a clock that is never set, for no jump may make an hour pass."""

    began_ms: int
    evicted: tuple[tuple[int, str], ...] = ()
    tried: Mapping[str, EvictionAttempts] = field(default_factory=dict)

    def after(self, uid: str, node: str, result: Result, at_ms: int) -> "EvictionHistory":
        """With one attempt more, which counts as an eviction also where nobody can tell. What no rule asks
        for any longer is left out."""
        tried = {uid: each for uid, each in self.tried.items() if at_ms - each.at_ms < HOUR_MS}
        count = tried[uid].count + 1 if uid in tried else 1
        lately = self._lately(at_ms)
        return EvictionHistory(
            self.began_ms,
            (*lately, (at_ms, node)) if result in ("evicted", "unclear") else lately,
            tried | {uid: EvictionAttempts(count, at_ms, result)},
        )

    def is_full(self, at_ms: int) -> bool:
        """Whether nobody may be evicted yet, whoever is due."""
        last_ms = self.evicted[-1][0] if self.evicted else self.began_ms
        return at_ms - last_ms < SPACE_MS or len(self._lately(at_ms)) >= MOST_IN_AN_HOUR

    def full_nodes(self, at_ms: int) -> frozenset[str]:
        """Those from which nobody may be evicted yet."""
        lately = Counter(node for _, node in self._lately(at_ms))
        return frozenset(node for node, count in lately.items() if count >= MOST_OF_A_NODE)

    def rests(self, uid: str, at_ms: int) -> bool:
        """Whether the last attempt at this pod was made too lately for another."""
        tried = self.tried.get(uid)
        if tried is None:
            return False
        pause_ms = min(FIRST_PAUSE_MS << min(tried.count - 1, 10), LONGEST_PAUSE_MS)
        if tried.result == "evicted":  # it goes, though the watch may be late to say so
            pause_ms = LONGEST_PAUSE_MS
        return at_ms - tried.at_ms < pause_ms

    def _lately(self, at_ms: int) -> tuple[tuple[int, str], ...]:
        return tuple(each for each in self.evicted if at_ms - each[0] < HOUR_MS)


@dataclass(frozen=True, slots=True)
class EvictionDecision:
    """Who is evicted now, None: nobody; and how many wait though they are due, for there were enough."""

    leaves: EvictionCandidate | None
    held_back: int


def decide(
    suspects: Iterable[EvictionCandidate], past: EvictionHistory, now_ms: int, at_ms: int
) -> EvictionDecision:
    """Of those that are due, who has been over his share for the longest. ``now_ms`` is of the clock by which
    looks are dated, ``at_ms`` of that of ``past``."""
    due = [each for each in suspects if is_due(each, now_ms) and not past.rests(each.over.uid, at_ms)]
    full = past.full_nodes(at_ms)
    free = [each for each in due if each.over.node not in full]
    if not free or past.is_full(at_ms):
        return EvictionDecision(None, len(due))
    first = min(free, key=lambda each: (each.over.episode.since_ms, each.over.uid))
    return EvictionDecision(first, len(due) - 1)


def is_due(suspect: EvictionCandidate, now_ms: int) -> bool:
    """Whether looks saw the pod over its share from the beginning to the end of its grace, the last of them
    lately. That time has passed since is no evidence."""
    episode, grace_ms = suspect.over.episode, suspect.grace_ms
    if grace_ms is None or not suspect.may_leave:
        return False
    is_fresh = abs(now_ms - episode.seen_ms) < FRESH_MS  # a clock that was set back may be behind it
    return is_fresh and episode.seen_ms - episode.since_ms >= grace_ms
