"""Pods over their memory share, and since when, by the samples of their nodes' agents.

A sample without figures of a card does not prove that the pod is within its share: the last observation holds
until a sample contradicts it, or until it expires.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from timekeeper.accounts.card_use.figures import (
    CardSample,
    MeasuredSession,
    MemoryExcess,
    UsageSample,
    excesses,
)

FRESH_MS = 120_000  # an older sample says nothing about a card now


@dataclass(frozen=True, slots=True)
class ObservedExcess:
    """An excess, and when a sample last showed it."""

    excess: MemoryExcess
    seen_ms: int


@dataclass(frozen=True, slots=True)
class OverusePeriod:
    """A pod over its memory share. ``since_ms``: the first sample that showed it. No later sample showed the
    pod within its share on all its cards, and there was no long gap."""

    since_ms: int
    cards: tuple[ObservedExcess, ...]

    @property
    def seen_ms(self) -> int:
        """When a sample last showed the pod over its share."""
        return max(each.seen_ms for each in self.cards)


@dataclass(frozen=True, slots=True)
class OverusingPod:
    """A pod over its memory share by its node's reports; times by our clock."""

    uid: str
    namespace: str
    name: str
    node: str
    episode: OverusePeriod


def follow(
    before: Mapping[str, OverusePeriod],
    samples: Iterable[tuple[int, UsageSample]],
    sessions: Mapping[str, MeasuredSession],
    lapse_ms: int = FRESH_MS,
) -> dict[str, OverusePeriod]:
    """The episodes by UID after these samples of a node. ``samples``: with their moments, in order of time,
    all later than those of ``before``. Pods that ``sessions`` lacks have no share. ``lapse_ms``: how long an
    observation holds without another."""
    episodes = dict(before)
    for at_ms, sample in samples:
        figures = dict(sample.pods)
        for uid in episodes.keys() | figures.keys():
            shown = _share(uid, at_ms, figures, sessions)
            after = _after(episodes.get(uid), at_ms, shown, lapse_ms) if shown is not None else None
            if after is not None:
                episodes[uid] = after
            else:
                episodes.pop(uid, None)
    return episodes


@dataclass(frozen=True, slots=True)
class _PodSample:
    """What a sample shows of a pod: the cards with a figure, and those of them where it is over its share."""

    cards: frozenset[str]
    over: tuple[MemoryExcess, ...]


def _share(
    uid: str,
    at_ms: int,
    figures: Mapping[str, tuple[CardSample, ...]],
    sessions: Mapping[str, MeasuredSession],
) -> _PodSample | None:
    """None for a pod in the sample that holds nothing on the node. A sample from before the pod had its cards
    shows nothing of it."""
    if uid not in figures:
        return _PodSample(frozenset(), ())
    if uid not in sessions:
        return None
    if at_ms < sessions[uid].since_ms:
        return _PodSample(frozenset(), ())
    cards = frozenset(each.uuid for each in figures[uid] if each.memory_mib is not None)
    return _PodSample(cards, excesses(sessions[uid].devices, figures[uid]))


def _after(
    before: OverusePeriod | None, at_ms: int, shown: _PodSample, lapse_ms: int
) -> OverusePeriod | None:
    known = before.cards if before else ()
    fresh = [each for each in known if at_ms - each.seen_ms <= lapse_ms]
    unchanged = [each for each in fresh if each.excess.uuid not in shown.cards]
    cards = (*unchanged, *(ObservedExcess(each, at_ms) for each in shown.over))
    if not cards:
        return None
    since_ms = before.since_ms if before and fresh else at_ms
    return OverusePeriod(since_ms, tuple(sorted(cards, key=lambda each: each.excess.uuid)))
