"""From a policy's scores to what kube-scheduler takes: whole numbers from 0 to 10."""

from collections.abc import Sequence
from itertools import compress
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduler_ext.scoring.policy import NO_FIT, RANDOM, Policy

MOST = 10


def ranked(policy: Policy, uid: str, scores: ArrayLike, names: Sequence[str]) -> list[int]:
    """A rank for each node by its score, 0 for one that the pod does not fit on (NO_FIT). For `random` the
    order of the nodes is drawn, always the same for a pod and a list of nodes."""
    each: NDArray[np.int64] = np.asarray(scores, np.int64)
    fits = each != NO_FIT
    if policy.name == RANDOM.name:
        each = drawn(uid, len(names))
    if fits.all():
        return ranks(each, names)
    found = np.zeros(len(names), np.int64)
    found[fits] = ranks(each[fits], list(compress(names, fits.tolist())))
    listed: list[int] = found.tolist()
    return listed


def ranks(scores: ArrayLike, names: Sequence[str]) -> list[int]:
    """10 for the best alone, of equally good nodes the first by name; for the others the less the further
    behind they are, equal where they are equally good.

    kube-scheduler chooses at random among nodes with equal sums: filling one node before the next is what
    packs. Up to ten different scores of the others are one apart, from 9 down; more are spread evenly.
    """
    each: NDArray[np.int64] = np.asarray(scores, np.int64)
    if not len(each):
        return []
    winner = _winner(each, names)
    others = np.ones(len(each), np.bool_)
    others[winner] = False
    levels, at = np.unique(-each[others], return_inverse=True)
    last = len(levels) - 1
    found = np.full(len(each), MOST, np.int64)
    found[others] = MOST - 1 - (at if last < MOST else -(-at * (MOST - 1) // last))
    listed: list[int] = found.tolist()
    return listed


def foremost(policy: Policy, uid: str, scores: ArrayLike, names: Sequence[str], most: int) -> list[str]:
    """So many of the nodes as are best, in the order of ``names``; among them the one that `ranked` gives 10
    of them all. Where not so many fit (NO_FIT), any others."""
    each: NDArray[np.int64] = np.asarray(scores, np.int64)
    if policy.name == RANDOM.name:
        each = np.where(each == NO_FIT, NO_FIT, drawn(uid, len(names)))
    chosen = np.argpartition(-each, most - 1)[:most].tolist() if most < len(names) else range(len(names))
    winner = _winner(each, names)
    if winner not in chosen:  # as good as the last of them
        chosen = [*chosen[:-1], winner]
    return [names[at] for at in sorted(chosen)]


def _winner(scores: NDArray[np.int64], names: Sequence[str]) -> int:
    best = scores == scores.max()
    return names.index(min(compress(names, best.tolist())))


def drawn(uid: str, count: int) -> NDArray[np.int64]:
    """The numbers below ``count`` in an order that looks random, by the UID."""
    return np.random.default_rng(crc32(uid.encode())).permutation(count)
