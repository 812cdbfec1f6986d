"""Fair order of accounts: use that decays with a half-life, and the ranks of Slurm's Fair Tree.

Use is GPU time in milli-GPU x milliseconds, as a float: it decides who goes next, and no account.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Share:
    """What an account may have among its siblings, and its use of late.

    ``weight``: a whole number, at least 0; only its ratio to the siblings' counts. ``use``: as `decayed` and
    `carried` sum it, plus what is reserved; ranks take it in whole milli-GPU x ms, and at least 0, so that
    sums of another order rank alike. Of siblings with different half-lives the longer one remembers more.
    """

    weight: int
    use: float


@dataclass(frozen=True, slots=True)
class Rank:
    """Where an account stands. ``rank``: 1 goes first; accounts that tie have the same, and the next one
    counts them (1, 1, 3). ``of``: how many accounts have a rank. ``share``, ``used``: its part of its
    siblings' weights and use, 0 to 1; 0 where their sum is 0."""

    rank: int
    of: int
    share: float
    used: float


@dataclass(frozen=True, slots=True)
class _Level:
    """An account, or a group, among its siblings."""

    key: str
    share: float
    used: float
    fairness: float  # share / used, Slurm's LF: infinite without use, 0 without weight
    is_group: bool = False


def decayed(rate: float, from_ms: int, to_ms: int, at_ms: int, half_life_ms: int) -> float:
    """What a rate (milli-GPU) over the interval contributes at a moment: the integral of
    rate * 2^(-(at - t) / half-life). What lies after ``at_ms`` does not count yet; an interval without
    length contributes 0."""
    end_ms = min(to_ms, at_ms)
    if end_ms <= from_ms:
        return 0.0
    grown = -math.expm1((from_ms - end_ms) * math.log(2) / half_life_ms)  # 1 - 2^-x, exact for small x
    return carried(rate * half_life_ms / math.log(2) * grown, end_ms, at_ms, half_life_ms)


def carried(value: float, from_ms: int, to_ms: int, half_life_ms: int) -> float:
    """What a sum of one moment is worth at another; a later moment halves it each half-life. Steps or all at
    once: the same."""
    return value * math.exp2((from_ms - to_ms) / half_life_ms)


def ranks(
    accounts: Mapping[str, Share], groups: Mapping[str, Share], group_of: Mapping[str, str]
) -> dict[str, Rank]:
    """The rank of each account (a namespace, or one for all namespaces without an entry), by its key.

    ``groups``: their own shares and use. ``group_of``: the group's key of each account that has one; the
    others stand beside the groups. https://slurm.schedmd.com/fair_tree.html: at each level the highest
    share / use goes first, all accounts of a group before all of the next. Groups that tie have their
    accounts merged, each compared by its level in its own group; an account that ties with a group has the
    rank of the group's first. All that have used nothing tie, and all of weight 0, which go last.

    Accounts that tie have one rank. Between pods of such accounts the older pod goes first.
    """
    beside = {key: share for key, share in accounts.items() if key not in group_of}
    members: dict[str, dict[str, Share]] = {group: {} for group in groups}
    for key, group in group_of.items():
        members[group][key] = accounts[key]
    inside = {group: list(_levels(shares, {})) for group, shares in members.items()}
    ranked: dict[str, Rank] = {}
    for tied in _ties(_levels(beside, groups)):
        alone = [level for level in tied if not level.is_group]
        merged = [level for group in tied if group.is_group for level in inside[group.key]]
        first, *later = [*_ties(merged)] or [[]]
        for equal in ([*alone, *first], *later):
            rank = len(ranked) + 1
            ranked |= {level.key: Rank(rank, len(accounts), level.share, level.used) for level in equal}
    return ranked


def _levels(accounts: Mapping[str, Share], groups: Mapping[str, Share]) -> Iterator[_Level]:
    """Those that are siblings. In whole numbers, so that equal ratios are equal."""
    siblings = [
        (key, share, shares is groups) for shares in (accounts, groups) for key, share in shares.items()
    ]
    weights = sum(share.weight for _, share, _ in siblings)
    uses = sum(_whole(share.use) for _, share, _ in siblings)
    for key, share, is_group in siblings:
        use, weight = _whole(share.use), share.weight
        fairness = 0.0 if not weight else weight * uses / (use * weights) if use else math.inf
        yield _Level(key, weight / max(1, weights), use / max(1, uses), fairness, is_group)


def _whole(use: float) -> int:
    return max(0, round(use))


def _ties(levels: Iterable[_Level]) -> Iterator[list[_Level]]:
    """Those of one fairness together, the highest first."""
    ordered = sorted(levels, key=lambda level: -level.fairness)
    return (list(tied) for _, tied in groupby(ordered, key=lambda level: level.fairness))
