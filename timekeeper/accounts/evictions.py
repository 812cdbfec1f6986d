"""Which pod is evicted next for being over its memory share, if any. Pure: values in, a verdict out.

Agents' figures may be wrong, all at once and everywhere after a driver's upgrade. So evictions are spaced,
and there are only so many in an hour: people have the time to see what goes on and to say ``observe``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from timekeeper.accounts.overuse import FRESH_MS, Over

HOUR_MS = 3_600_000
SPACE_MS = 20_000  # between two evictions, and after the start of whoever decides
MOST_IN_AN_HOUR = 30
FIRST_PAUSE_MS = 30_000  # between two attempts at one pod; each is twice the one before
LONGEST_PAUSE_MS = 600_000

# "evicted": it goes; "gone": it had gone before; "protected": a PodDisruptionBudget keeps it; "refused": the
# API server will not, for now or at all; "unclear": it failed or did not answer, so the pod may go or not
Result = Literal["evicted", "gone", "protected", "refused", "unclear"]
RESULTS: tuple[Result, ...] = ("evicted", "gone", "protected", "refused", "unclear")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A pod over its share. ``grace_ms``: how long it may be, None: as long as it likes; ``may_leave``: it is
    the pod that is there under this UID, on this node, and neither ended nor about to go."""

    over: Over
    grace_ms: int | None
    may_leave: bool


@dataclass(frozen=True, slots=True)
class Tried:
    """The attempts at one pod: how many, when the last was made, and what came of it."""

    count: int
    at_ms: int
    result: Result


@dataclass(frozen=True, slots=True)
class Past:
    """What was done since ``began_ms``: when pods were evicted in the last hour, and at whom it was tried."""

    began_ms: int
    evicted_ms: tuple[int, ...] = ()
    tried: Mapping[str, Tried] = field(default_factory=dict)

    def after(self, uid: str, result: Result, now_ms: int) -> "Past":
        """With one attempt more, which counts as an eviction also where nobody can tell. What no rule asks
        for any longer is left out."""
        lately = tuple(each for each in self.evicted_ms if _apart(each, now_ms) < HOUR_MS)
        tried = {uid: each for uid, each in self.tried.items() if _apart(each.at_ms, now_ms) < HOUR_MS}
        count = tried[uid].count + 1 if uid in tried else 1
        return Past(
            self.began_ms,
            (*lately, now_ms) if result in ("evicted", "unclear") else lately,
            tried | {uid: Tried(count, now_ms, result)},
        )

    def is_full(self, now_ms: int) -> bool:
        """Whether nobody may be evicted yet, whoever is due."""
        last_ms = self.evicted_ms[-1] if self.evicted_ms else self.began_ms
        lately = sum(_apart(each, now_ms) < HOUR_MS for each in self.evicted_ms)
        return _apart(last_ms, now_ms) < SPACE_MS or lately >= MOST_IN_AN_HOUR

    def rests(self, uid: str, now_ms: int) -> bool:
        """Whether the last attempt at this pod was made too lately for another."""
        tried = self.tried.get(uid)
        if tried is None:
            return False
        pause_ms = min(FIRST_PAUSE_MS << min(tried.count - 1, 10), LONGEST_PAUSE_MS)
        if tried.result == "evicted":  # it goes, though the watch may be late to say so
            pause_ms = LONGEST_PAUSE_MS
        return _apart(tried.at_ms, now_ms) < pause_ms


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is evicted now, None: nobody; and how many wait though they are due, for there were enough."""

    leaves: Suspect | None
    held_back: int


def decide(suspects: Iterable[Suspect], past: Past, now_ms: int) -> Verdict:
    """Of those that are due, who has been over his share for the longest."""
    due = [each for each in suspects if is_due(each, now_ms) and not past.rests(each.over.uid, now_ms)]
    if not due:
        return Verdict(None, 0)
    if past.is_full(now_ms):
        return Verdict(None, len(due))
    first = min(due, key=lambda each: (each.over.episode.since_ms, each.over.uid))
    return Verdict(first, len(due) - 1)


def is_due(suspect: Suspect, now_ms: int) -> bool:
    """Whether looks saw the pod over its share from the beginning to the end of its grace, the last of them
    lately. That time has passed since is no evidence."""
    episode, grace_ms = suspect.over.episode, suspect.grace_ms
    if grace_ms is None or not suspect.may_leave:
        return False
    is_fresh = _apart(episode.seen_ms, now_ms) < FRESH_MS
    return is_fresh and episode.seen_ms - episode.since_ms >= grace_ms


def _apart(one_ms: int, other_ms: int) -> int:
    """Between two moments; where a clock was set back, the later may come first."""
    return abs(one_ms - other_ms)
