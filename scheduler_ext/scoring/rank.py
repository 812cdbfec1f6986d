"""From a policy's scores to what kube-scheduler accepts: integers from 0 to 10."""

from collections.abc import Collection, Sequence
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduler_ext.scoring.policy import NO_FIT, RANDOM, Policy

MOST = 10

_FEW = 65_536  # scores that differ by less are counted, not sorted

Ints = NDArray[np.int64]


def places(names: Sequence[str]) -> Ints:
    """Each name's place if they were sorted, from 0 on."""
    found = np.empty(len(names), np.int64)
    found[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return found


def behind_others(scores: ArrayLike, names: Sequence[str], last: Collection[str]) -> Ints:
    """The scores as if the pod did not fit on the nodes that come ``last``, unless it fits on no other."""
    of_all: Ints = np.asarray(scores, np.int64)
    if not last:
        return of_all
    is_last = np.fromiter((name in last for name in names), bool, len(names))
    return np.where(is_last, NO_FIT, of_all) if (of_all[~is_last] != NO_FIT).any() else of_all


def ranked(policy: Policy, uid: str, scores: ArrayLike, by_name: Ints) -> Ints:
    """A rank for each node by its score, 0 where the pod does not fit (NO_FIT). ``by_name``: an order of the
    nodes by their names. For `random` the order is drawn, always the same for a pod and a list of nodes."""
    each: Ints = np.asarray(scores, np.int64)
    fits = each != NO_FIT
    if policy.name == RANDOM.name:
        each = drawn(uid, len(each))
    if fits.all():
        return ranks(each, by_name)
    found = np.zeros(len(each), np.int64)
    found[fits] = ranks(each[fits], by_name[fits])
    return found


def level(ranks: Ints, scores: ArrayLike) -> Ints:
    """The same best node, and all others that fit one rank behind it. A preference of the pod's own is worth
    two ranks in kube-scheduler's sum, so it decides before the policy."""
    fits = np.asarray(scores, np.int64) != NO_FIT
    found: Ints = np.where(fits, np.maximum(ranks, MOST - 1), 0)
    return found


def ranks(scores: ArrayLike, by_name: Ints) -> Ints:
    """10 for the best node alone (among equals the first by name), less for the others the further behind
    they are; equal scores get equal ranks.

    kube-scheduler chooses at random among nodes with equal sums, and packing means to fill one node before
    the next. Up to ten different scores of the others differ by one, from 9 down; more are spread evenly.
    """
    each: Ints = np.asarray(scores, np.int64)
    if not len(each):
        return each
    behind: Ints = each.max() - each
    if behind.max() >= _FEW:
        behind = np.unique(behind, return_inverse=True)[1]
    winner = _winner(each, by_name)
    counts = np.bincount(behind)
    counts[0] -= 1  # the winner
    levels = np.cumsum(counts > 0) - 1
    last = int(levels[-1])
    of_level = MOST - 1 - (levels if last < MOST else -(-levels * (MOST - 1) // last))
    found: Ints = of_level[behind]
    found[winner] = MOST
    return found


def foremost(
    policy: Policy, uid: str, scores: ArrayLike, by_name: Ints, names: Sequence[str], most: int
) -> list[str]:
    """The ``most`` best nodes, in the order of ``names``, among them the node that `ranked` gives a 10. If
    fewer fit (NO_FIT), any others are added."""
    each: Ints = np.asarray(scores, np.int64)
    if policy.name == RANDOM.name:
        each = np.where(each == NO_FIT, NO_FIT, drawn(uid, len(names)))
    chosen = np.argpartition(-each, most - 1)[:most].tolist() if most < len(names) else range(len(names))
    winner = _winner(each, by_name)
    if winner not in chosen:  # as good as the last of them
        chosen = [*chosen[:-1], winner]
    return [names[at] for at in sorted(chosen)]


def _winner(scores: Ints, by_name: Ints) -> int:
    best = np.flatnonzero(scores == scores.max())
    return int(best[by_name[best].argmin()])


def drawn(uid: str, count: int) -> NDArray[np.int64]:
    """The numbers below ``count`` in a pseudo-random order that the UID determines."""
    return np.random.default_rng(crc32(uid.encode())).permutation(count)
