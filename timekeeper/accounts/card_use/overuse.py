"""Pods over their memory share, and for how long, by the looks of their nodes' agents.

A look that tells nothing of a card is no word that the pod is within its share: what was seen there holds
until a look tells otherwise, or until none has seen it for a while.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from timekeeper.accounts.card_use.agent_looks import MeasuredSession, MemoryExcess, UsageSample, excesses
from timekeeper.accounts.card_use.figures import CardSample

FRESH_MS = 120_000  # what is older than this tells nobody how a card is doing now


@dataclass(frozen=True, slots=True)
class ObservedExcess:
    """An excess, and when a look saw it last."""

    excess: MemoryExcess
    seen_ms: int


@dataclass(frozen=True, slots=True)
class OveruseEpisode:
    """A pod over its memory share. ``since_ms``: the first look that saw it so; none since has seen it within
    on all its cards, and there was no long time without one that saw it over."""

    since_ms: int
    cards: tuple[ObservedExcess, ...]

    @property
    def seen_ms(self) -> int:
        """When a look saw the pod over its share last."""
        return max(each.seen_ms for each in self.cards)


@dataclass(frozen=True, slots=True)
class OverusingPod:
    """A pod over its memory share by its node's reports; moments by our clock."""

    uid: str
    namespace: str
    name: str
    node: str
    episode: OveruseEpisode


def follow(
    before: Mapping[str, OveruseEpisode],
    looks: Iterable[tuple[int, UsageSample]],
    held: Mapping[str, MeasuredSession],
    lapse_ms: int = FRESH_MS,
) -> dict[str, OveruseEpisode]:
    """The episodes after these looks of a node, by UID; ``looks`` with their moments, in the order of time,
    all later than those that ``before`` follows from. Pods in them that ``held`` lacks have no share there.
    ``lapse_ms``: for so long what a look saw holds while none tells."""
    episodes = dict(before)
    for at_ms, look in looks:
        figures = dict(look.pods)
        for uid in episodes.keys() | figures.keys():
            mine = _share(uid, at_ms, figures, held)
            after = _after(episodes.get(uid), at_ms, mine, lapse_ms) if mine is not None else None
            if after is not None:
                episodes[uid] = after
            else:
                episodes.pop(uid, None)
    return episodes


@dataclass(frozen=True, slots=True)
class _PodSample:
    """What a look tells of a pod: the cards with a figure, and those of them where it is over."""

    cards: frozenset[str]
    over: tuple[MemoryExcess, ...]


def _share(
    uid: str, at_ms: int, figures: Mapping[str, tuple[CardSample, ...]], held: Mapping[str, MeasuredSession]
) -> _PodSample | None:
    """None for a pod that the look names and that holds nothing on the node. A look from before the pod had
    its cards tells nothing of it, whatever it says."""
    if uid not in figures:
        return _PodSample(frozenset(), ())
    if uid not in held:
        return None
    if at_ms < held[uid].since_ms:
        return _PodSample(frozenset(), ())
    cards = frozenset(each.uuid for each in figures[uid] if each.memory_mib is not None)
    return _PodSample(cards, excesses(held[uid].devices, figures[uid]))


def _after(
    before: OveruseEpisode | None, at_ms: int, told: _PodSample, lapse_ms: int
) -> OveruseEpisode | None:
    known = before.cards if before else ()
    fresh = [each for each in known if at_ms - each.seen_ms <= lapse_ms]
    kept = [each for each in fresh if each.excess.uuid not in told.cards]
    cards = (*kept, *(ObservedExcess(each, at_ms) for each in told.over))
    if not cards:
        return None
    since_ms = before.since_ms if before and fresh else at_ms
    return OveruseEpisode(since_ms, tuple(sorted(cards, key=lambda each: each.excess.uuid)))
