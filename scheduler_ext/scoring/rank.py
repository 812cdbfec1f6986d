"""From a policy's scores to what kube-scheduler accepts: integers from 0 to 10."""

from collections.abc import Sequence
from itertools import compress
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduler_ext.scoring.policy import NO_FIT, RANDOM, Policy

MOST = 10


def ranked(policy: Policy, uid: str, scores: ArrayLike, names: Sequence[str]) -> NDArray[np.int64]:
    """A rank for each node by its score, 0 where the pod does not fit (NO_FIT). For `random` the order is
    drawn, always the same for a pod and a list of nodes."""
    each: NDArray[np.int64] = np.asarray(scores, np.int64)
    fits = each != NO_FIT
    if policy.name == RANDOM.name:
        each = drawn(uid, len(names))
    if fits.all():
        return ranks(each, names)
    found = np.zeros(len(names), np.int64)
    found[fits] = ranks(each[fits], list(compress(names, fits.tolist())))
    return found


def ranks(scores: ArrayLike, names: Sequence[str]) -> NDArray[np.int64]:
    """10 for the best node alone (among equals the first by name), less for the others the further behind
    they are; equal scores get equal ranks.

    kube-scheduler chooses at random among nodes with equal sums, and packing means to fill one node before
    the next. Up to ten different scores of the others differ by one, from 9 down; more are spread evenly.
    """
    each: NDArray[np.int64] = np.asarray(scores, np.int64)
    if not len(each):
        return each
    winner = _winner(each, names)
    others = np.ones(len(each), np.bool_)
    others[winner] = False
    levels, at = np.unique(-each[others], return_inverse=True)
    last = len(levels) - 1
    found = np.full(len(each), MOST, np.int64)
    found[others] = MOST - 1 - (at if last < MOST else -(-at * (MOST - 1) // last))
    return found


def foremost(policy: Policy, uid: str, scores: ArrayLike, names: Sequence[str], most: int) -> list[str]:
    """The ``most`` best nodes, in the order of ``names``, among them the node that `ranked` gives a 10. If
    fewer fit (NO_FIT), any others are added."""
    each: NDArray[np.int64] = np.asarray(scores, np.int64)
    if policy.name == RANDOM.name:
        each = np.where(each == NO_FIT, NO_FIT, drawn(uid, len(names)))
    chosen = np.argpartition(-each, most - 1)[:most].tolist() if most < len(names) else range(len(names))
    winner = _winner(each, names)
    if winner not in chosen:  # as good as the last of them
        chosen = [*chosen[:-1], winner]
    return [names[at] for at in sorted(chosen)]


def _winner(scores: NDArray[np.int64], names: Sequence[str]) -> int:
    best: list[int] = np.flatnonzero(scores == scores.max()).tolist()
    return min(best, key=names.__getitem__)


def drawn(uid: str, count: int) -> NDArray[np.int64]:
    """The numbers below ``count`` in a pseudo-random order that the UID determines."""
    return np.random.default_rng(crc32(uid.encode())).permutation(count)
